"""krait.State: the recurrent state of a model."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from . import _core
from ._arrays import to_numpy

if TYPE_CHECKING:
    from ._model import Model


class State(Mapping[str, "npt.NDArray[Any]"]):
    """What a model remembers of the tokens so far: constant in size, one row for each sequence.

    A mapping from names such as "layers.3.ssm" to read-only arrays, which share the memory of the state on the CPU.
    States do not change, except by Model.step(..., in_place=True); select, fork and join give new ones.

    >>> import krait
    >>> m = krait.new("mamba2", d_model=16, n_layers=2, vocab_size=256, state_rank=8, per_head_dim=8)
    >>> logits, s = m.forward([[1, 2, 3], [4, 5, 6]])
    >>> s.batch, s["layers.1.ssm"].shape
    (2, (2, 4, 8, 8))
    >>> s.select([1]).batch, s.fork(row=0, count=3).batch, krait.State.join([s, s]).batch
    (1, 3, 4)
    """

    __slots__ = ("_core", "_names", "model")

    def __init__(self, core: _core.State, model: Model) -> None:
        self._core = core
        self._names: dict[str, tuple[int, int]] | None = None
        self.model = model

    @property
    def batch(self) -> int:
        """Number of rows."""
        return self._core.batch

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return self._core.nbytes

    @property
    def is_initial(self) -> bool:
        """Has no token been processed? An initial state has no arrays."""
        return self._core.is_initial

    def _slots(self) -> dict[str, tuple[int, int]]:
        if self._names is None:
            self._names = {}
            for slot, names in enumerate(self._core.names()):
                for index, name in enumerate(names):
                    if self._core.array(slot, index) is not None:
                        self._names[f"layers.{slot}.{name}"] = (slot, index)
        return self._names

    def array(self, name: str) -> _core.Array:
        """One tensor as a krait.Array, for DLPack."""
        found = self._core.array(*self._slots()[name])
        if found is None:
            raise KeyError(name)
        return found

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        return to_numpy(self.array(name))

    def __iter__(self) -> Iterator[str]:
        return iter(self._slots())

    def __len__(self) -> int:
        return len(self._slots())

    def select(self, rows: Sequence[int]) -> State:
        """A state of these rows, in this order; a row may occur more than once."""
        return State(self._core.select([int(row) for row in rows]), self.model)

    def fork(self, row: int = 0, count: int = 2) -> State:
        """A state of `count` copies of one row."""
        return self.select([row] * count)

    @staticmethod
    def join(states: Sequence[State]) -> State:
        """A state with the rows of several states, one after another."""
        states = list(states)
        if not states:
            raise _core.ArgumentError("state.join: there is no state to join")
        return State(states[0]._core.join([state._core for state in states]), states[0].model)

    def copy(self) -> State:
        """A copy with memory of its own."""
        return State(self._core.copy(), self.model)

    def announce(self, length: int) -> None:
        """Announces the number of tokens of the sequence, which middle and end class tokens need."""
        self._core.announce(length)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Saves the state to a file that only the same model loads (Model.load_state)."""
        self._core.save(path)

    def to_bytes(self) -> bytes:
        """The file of save, as bytes (Model.load_state takes them too)."""
        return self._core.to_bytes()

    def __copy__(self) -> State:
        return self.copy()

    def __deepcopy__(self, memo: Any) -> State:
        return self.copy()

    def __reduce__(self) -> tuple[Any, ...]:
        return (_unpickle, (self.model, self.to_bytes()))

    def __repr__(self) -> str:
        rows = f"{self.batch} row{'' if self.batch == 1 else 's'}"
        return f"<krait.State {rows}, {self._core.slots} layers, {self.nbytes} bytes>"


def _unpickle(model: Model, data: bytes) -> State:
    return model.load_state(data)
