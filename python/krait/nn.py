"""Blocks and stacks on NumPy arrays: forward, step, and gradients.

>>> import numpy as np
>>> from krait import nn
>>> block = nn.Mamba2(d_model=16, state_rank=8, per_head_dim=8, seed=1)
>>> x = np.random.default_rng(1).standard_normal((2, 5, 16), dtype=np.float32)
>>> y, cache = block(x)
>>> y.shape, list(cache)
((2, 5, 16), ['conv', 'ssm'])
>>> (y, cache), backward = block.vjp(x)
>>> grads = backward(np.ones_like(y))
>>> grads.x.shape, grads.params["D"].shape
((2, 5, 16), (4,))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from . import _core
from ._arrays import owned
from ._contexts import default_context
from ._params import Params, empty_gradients
from ._vjp import backpropagate, put

Array = npt.NDArray[Any]
Like = Any

__all__ = ["Gradients", "Layers", "Mamba1", "Mamba2", "Mamba3"]


@dataclass
class Gradients:
    """Gradients of a call: of its input, of the cache before it, and of the weights, by name."""

    x: Array
    cache: dict[str, Array]
    params: dict[str, Array]


class _Module:
    """What blocks and stacks have in common."""

    _block: _core.Block

    def __init__(
        self,
        family: str,
        fields: dict[str, Any],
        stack: dict[str, Any] | None,
        seed: int | None,
        context: _core.Context | None,
    ) -> None:
        self._family, self._fields, self._stack = family, fields, stack
        made = context or default_context()
        with made:
            if seed is not None:
                made.seed(seed)
            self._block = _core.Block(made, family, fields, stack)
        self.params = Params(self._block.params())
        self._dtype = "f64" if fields.get("dtype") == "f64" else None

    @property
    def context(self) -> _core.Context:
        """The context: device, threads and memory."""
        return self._block.context

    def _x(self, tape: _core.Tape, x: Like, leaves: dict[str, _core.Array] | None) -> _core.Array:
        made: _core.Array = put(tape, "x", x, self._dtype, leaves)
        return made

    def _param_gradients(self, tape: _core.Tape, outputs: list[_core.Array], gradients: list[Any]) -> dict[str, Array]:
        table = self.params._core
        with self.context:
            table.zero_grad()
            try:
                backpropagate(tape, outputs, gradients)
                found = empty_gradients(table)
                for i, out in enumerate(found.values()):
                    gradient = table.grad(i)
                    if gradient is None:
                        out[...] = 0
                    else:
                        gradient.read(out)
            finally:
                table.zero_grad()
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        values = {name: self.params[name].read() for name in self.params}
        return (_unpickle, (type(self), self._family, self._fields, self._stack, values))

    def __repr__(self) -> str:
        return f"<krait.nn.{type(self).__name__} {self.params.elements} parameters, {self.context.device}>"


def _unpickle(kind: Any, family: str, fields: Any, stack: Any, values: dict[str, Array]) -> _Module:
    made: _Module = kind.__new__(kind)
    _Module.__init__(made, family, fields, stack, None, None)
    for name, value in values.items():
        made.params[name] = value
    return made


class _Block(_Module):
    """A block. Its cache is a dict of arrays: what it remembers of the tokens so far."""

    _name = ""

    def __init__(
        self, d_model: int, *, seed: int = 0, context: _core.Context | None = None, **fields: Any
    ) -> None:
        super().__init__(self._name, {"d_model": d_model, **fields}, None, seed, context)

    def _call(
        self,
        tape: _core.Tape,
        kind: str,
        x: Like,
        cache: Mapping[str, Like] | None,
        marks: dict[str, Any],
        leaves: dict[str, _core.Array] | None = None,
    ) -> tuple[_core.Array, Any]:
        names = self._block.cache_names()
        held = None
        if cache is not None:
            unknown = set(cache) ^ set(names)
            if unknown:
                raise _core.ArgumentError(f"block: the cache must have {', '.join(names)}, but not {sorted(unknown)}")
            held = tuple(put(tape, name, cache[name], self._dtype, leaves) for name in names)
        named = {name: put(tape, name, mark, None, None) for name, mark in marks.items() if mark is not None}
        y, new = self._block.run(tape, kind, self._x(tape, x, leaves), held, **named)
        return y, new

    def _result(self, y: _core.Array, new: Any) -> tuple[Array, dict[str, Array]]:
        return owned(y), {name: owned(array) for name, array in zip(self._block.cache_names(), new)}

    def forward(
        self,
        x: Like,
        cache: Mapping[str, Like] | None = None,
        *,
        mask: Like | None = None,
        seq_start: Like | None = None,
        reset: Like | None = None,
        cu_seqlens: Like | None = None,
    ) -> tuple[Array, dict[str, Array]]:
        """Runs the block over x [b s d] after `cache`. Returns y [b s d] and the new cache."""
        marks = dict(mask=mask, seq_start=seq_start, reset=reset, cu_seqlens=cu_seqlens)
        return self._result(*self._call(_core.Tape(self.context), "forward", x, cache, marks))

    __call__ = forward

    def step(self, x: Like, cache: Mapping[str, Like] | None = None) -> tuple[Array, dict[str, Array]]:
        """Runs the block over one token for each row, x [b d]."""
        return self._result(*self._call(_core.Tape(self.context), "step", x, cache, {}))

    def step_infinite(self, x: Like) -> Array:
        """The limit of the outputs of step when x [b d] is repeated forever."""
        return owned(self._call(_core.Tape(self.context), "step_infinite", x, None, {})[0])

    def vjp(
        self,
        x: Like,
        cache: Mapping[str, Like] | None = None,
        *,
        mask: Like | None = None,
        seq_start: Like | None = None,
        reset: Like | None = None,
        cu_seqlens: Like | None = None,
    ) -> tuple[tuple[Array, dict[str, Array]], Callable[..., Gradients]]:
        """forward, and a function backward(g_y, g_cache=None) that returns Gradients. It can be called once."""
        tape = _core.Tape(self.context, grad=True)
        leaves: dict[str, _core.Array] = {}
        marks = dict(mask=mask, seq_start=seq_start, reset=reset, cu_seqlens=cu_seqlens)
        y, new = self._call(tape, "forward", x, cache, marks, leaves)
        names = self._block.cache_names()

        def backward(g_y: Like, g_cache: Mapping[str, Like] | None = None) -> Gradients:
            gradients = [g_y, *((g_cache or {}).get(name) for name in names)]
            params = self._param_gradients(tape, [y, *new], gradients)
            found = {name: tape.grad(leaf) for name, leaf in leaves.items()}
            arrays = {
                name: owned(g) if g is not None else np.zeros(leaves[name].shape, np.float32)
                for name, g in found.items()
            }
            return Gradients(arrays.pop("x"), arrays, params)

        return self._result(y, new), backward


class Mamba1(_Block):
    """A Mamba-1 block: Mamba1(d_model, *, seed=0, context=None, **fields), fields of kr_mamba1_config.

    >>> Mamba1(16, state_rank=4).params["A_log"].shape
    (32, 4)
    """

    _name = "mamba1"


class Mamba2(_Block):
    """A Mamba-2 block: Mamba2(d_model, *, seed=0, context=None, **fields), fields of kr_mamba2_config.

    >>> Mamba2(16, per_head_dim=8).params["D"].shape
    (4,)
    """

    _name = "mamba2"


class Mamba3(_Block):
    """A Mamba-3 block: Mamba3(d_model, *, seed=0, context=None, **fields), fields of kr_mamba3_config.

    >>> import numpy as np
    >>> y, cache = Mamba3(16, state_rank=8, per_head_dim=8)(np.zeros((1, 3, 16), np.float32))
    >>> list(cache)
    ['ssm', 'k', 'v', 'rotation']
    """

    _name = "mamba3"


class Layers(_Module):
    """A stack of blocks with norms and residual connections.

    Layers(family, d_model, n_layers, *, stack fields, **block fields): fields of kr_layers_config, and of the family's
    config. Its state is a krait._core.State that select, join and copy work on.

    >>> import numpy as np
    >>> stack = Layers("mamba2", 16, 2, per_head_dim=8, state_rank=8)
    >>> y, state = stack(np.zeros((2, 3, 16), np.float32))
    >>> y.shape, state.batch
    ((2, 3, 16), 2)
    """

    def __init__(
        self,
        family: str,
        d_model: int,
        n_layers: int,
        *,
        seed: int = 0,
        context: _core.Context | None = None,
        **fields: Any,
    ) -> None:
        own = set(_core.config_defaults("layers"))
        stack = {name: value for name, value in fields.items() if name in own}
        block = {name: value for name, value in fields.items() if name not in own}
        super().__init__(family, {"d_model": d_model, **block}, {"n_layers": n_layers, **stack}, seed, context)

    def _call(
        self,
        tape: _core.Tape,
        kind: str,
        x: Like,
        state: _core.State | None,
        marks: dict[str, Any],
        leaves: dict[str, _core.Array] | None = None,
    ) -> tuple[_core.Array, Any]:
        named = {name: put(tape, name, mark, None, None) for name, mark in marks.items() if mark is not None}
        y, new = self._block.run(tape, kind, self._x(tape, x, leaves), state, **named)
        return y, new

    def state(self, batch: int = 1) -> _core.State:
        """An initial state."""
        return self._block.state(batch)

    def forward(
        self,
        x: Like,
        state: _core.State | None = None,
        *,
        mask: Like | None = None,
        seq_start: Like | None = None,
        reset: Like | None = None,
        cu_seqlens: Like | None = None,
    ) -> tuple[Array, _core.State]:
        """Runs the stack over x [b s d] after `state`. Returns y [b s d] and the new state."""
        marks = dict(mask=mask, seq_start=seq_start, reset=reset, cu_seqlens=cu_seqlens)
        y, new = self._call(_core.Tape(self.context), "forward", x, state, marks)
        return owned(y), new

    __call__ = forward

    def step(self, x: Like, state: _core.State | None = None) -> tuple[Array, _core.State]:
        """Runs the stack over one token for each row, x [b d]."""
        y, new = self._call(_core.Tape(self.context), "step", x, state, {})
        return owned(y), new

    def step_infinite(self, x: Like) -> Array:
        """The limit of the outputs of step when x [b d] is repeated forever."""
        return owned(self._call(_core.Tape(self.context), "step_infinite", x, None, {})[0])

    def vjp(
        self,
        x: Like,
        state: _core.State | None = None,
        *,
        mask: Like | None = None,
        seq_start: Like | None = None,
        reset: Like | None = None,
        cu_seqlens: Like | None = None,
    ) -> tuple[tuple[Array, _core.State], Callable[..., Gradients]]:
        """forward, and a function backward(g_y) that returns Gradients of x and of the weights. It can be called once."""
        tape = _core.Tape(self.context, grad=True)
        leaves: dict[str, _core.Array] = {}
        marks = dict(mask=mask, seq_start=seq_start, reset=reset, cu_seqlens=cu_seqlens)
        y, new = self._call(tape, "forward", x, state, marks, leaves)

        def backward(g_y: Like) -> Gradients:
            params = self._param_gradients(tape, [y], [g_y])
            g_x = tape.grad(leaves["x"])
            return Gradients(owned(g_x) if g_x is not None else np.zeros(leaves["x"].shape, np.float32), {}, params)

        return (owned(y), new), backward
