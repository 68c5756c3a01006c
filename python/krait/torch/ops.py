"""torch.ops.krait: the library's kernels as PyTorch ops.

Each op is a row of a table: operands and results with their axes, in the letters of docs/notation.md, and the raw op
that computes it. From the row come the schema, the kernel for CPU and CUDA, shapes for meta and fake tensors, the
backward op, autograd, the autocast rule and the vmap rule. A backward op recomputes from its operands: nothing but these
is saved. Operands are read in place where their strides allow; copies() counts the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Sequence

import torch
from torch.library import Library

from krait import _core
from krait.torch import kernels
from krait.torch.kernels import OptionalTensor

LIBRARY = Library("krait", "DEF")
NAMESPACE = torch.ops.krait
_DEVICES = ("CPU", "CUDA")
Call = Callable[..., tuple[Any, ...]]
Views = Sequence[Any]


def raw_names(op: int) -> list[str]:
    """Names of the views of a raw op, operands and results."""
    return [term.split(":")[0] for term in _core.raw_signature(op).split()[1:] if term != "->"]


class Axis:
    """An operand or a result: its name, the letters of its axes, and how it is read.

    "x:b.s.hp?~" is optional (?), and of the type of the first operand (~), else of the computing type; "^" is the type of
    the first operand where kernels keep it (bf16 on a GPU). Axes before the last dot are tokens, whose rows may be strided.
    "..i" is any leading axes and i.
    """

    def __init__(self, text: str) -> None:
        name, axes = text.split(":")
        self.is_activation, self.is_kept_narrow = axes.endswith("~"), axes.endswith("^")
        axes = axes.rstrip("~^")
        self.optional = axes.endswith("?")
        axes = axes.rstrip("?")
        self.name = name
        self.leads = axes.startswith("..")
        axes = axes[2:] if self.leads else axes
        self.tokens = -1 if self.leads and "." in axes else axes.count(".")  # -1: all leading axes
        self.letters = axes.replace(".", "")
        self.rank = len(self.letters)

    def text(self) -> str:
        return "[" + (".. " if self.leads else "") + " ".join(self.letters) + "]"


def _axes(text: str) -> tuple[Axis, ...]:
    return tuple(Axis(part) for part in text.split())


_DIGITS = {"3": 3, "4": 4}  # letters of axes that have a fixed size


class Dims(dict):  # type: ignore[type-arg]
    """Sizes by letter; "..": the leading axes."""

    def shape(self, axis: Axis) -> tuple[int, ...]:
        sizes = tuple([self[letter] for letter in axis.letters])
        return self[".."] + sizes if axis.leads else sizes


def refuse_second_derivative(name: str) -> Callable[..., Any]:
    """What autograd calls for the derivative of a backward op."""

    def backward(ctx: Any, *grads: Any) -> Any:
        raise RuntimeError(
            f"krait::{name} has no second derivative: its gradient is computed by a kernel that has none itself; use "
            "create_graph=False, or write this part in torch ops"
        )

    return backward


def _no_context(ctx: Any, inputs: Any, output: Any) -> None:
    return None


def define_backward(name: str, schema: str, kernel: Callable[..., Any], fake: Callable[..., Any]) -> None:
    """Registers a backward op: a kernel for all devices, shapes, and a derivative that explains that there is none."""
    LIBRARY.define(f"{name}_backward{schema}", tags=(torch.Tag.pt2_compliant_tag, torch.Tag.needs_exact_strides))
    for device in _DEVICES:
        LIBRARY.impl(f"{name}_backward", kernel, device)
    full = f"krait::{name}_backward"
    torch.library.register_fake(full, fake, lib=LIBRARY)
    torch.library.register_autograd(full, refuse_second_derivative(name), setup_context=_no_context, lib=LIBRARY)


@dataclass
class Narrow:
    """Which operands and results of the kernels may be bf16 on a GPU."""

    operands: list[bool]
    results: list[bool]
    operands_backward: list[bool]
    kept: list[bool]
    given: list[bool]
    made: list[bool]


def _plain_keys() -> tuple[int, ...]:
    """The dispatch keys after autograd of tensors that nothing traces, wraps or transforms."""
    view = torch._C.DispatchKey.ADInplaceOrView
    plain = [torch._C.DispatchKeySet(key) for key in (torch._C.DispatchKey.CPU, torch._C.DispatchKey.CUDA)]
    return tuple(keys.raw_repr() for each in plain for keys in (each, each.add(view)))


class Op:
    """An op: its operands and results, and the two functions of a subclass that compute results and gradients."""

    takes_any_type = False  # of operands but the first, which are converted to the computing type

    def __init__(self, name: str, operands: str, results: str, *, options: str = "", keeps: str = "", constant: str = "",
                 autocast: str = "") -> None:
        """keeps: results saved for backward. constant: names without a gradient. autocast: operands that autocast on a GPU
        casts to bf16."""
        self.name, self.operands, self.results = name, _axes(operands), _axes(results)
        self.n_in, self.n_out = len(self.operands), len(self.results)
        self.kept = [i for i, axis in enumerate(self.results) if axis.name in keeps.split()]
        self.given = [i for i, axis in enumerate(self.results) if axis.name not in constant.split()]
        self.variable = [axis.name not in constant.split() for axis in self.operands]
        self.options, self.n_options = options, len([o for o in options.split(",") if o.strip()])
        self.autocast = autocast.split()
        self.binders = self._binders()
        n_kept, n_given = len(self.kept), len(self.given)
        self.narrow = Narrow([False] * self.n_in, [False] * self.n_out, [False] * self.n_in, [False] * n_kept,
                              [False] * n_given, [False] * self.n_in)
        self._register(options)

    def run_forward(self, dims: Dims, operands: Views, results: Views, sequences: OptionalTensor,
                    options: tuple[Any, ...]) -> None:
        """Computes the results from operands as they are read."""
        raise NotImplementedError

    def run_backward(self, dims: Dims, operands: Views, kept: Views, given: Views, made: Views,
                     sequences: OptionalTensor, options: tuple[Any, ...]) -> None:
        """Computes the gradients `made`, None where not wanted, from operands, kept results and gradients of results."""
        raise NotImplementedError

    def add_sizes(self, dims: Dims, options: tuple[Any, ...]) -> None:
        """Sizes of results that follow from options."""

    # ---- shapes ----

    def _binders(self) -> list[tuple[int, Axis, bool]]:
        """For each operand its index, its axis, and whether it has axes that no required operand before it has."""
        seen, binders = {"3", "4"}, []
        for i, axis in enumerate(self.operands):
            own = set(axis.letters) | ({".."} if axis.leads else set())
            binders.append((i, axis, bool(own - seen)))
            if not axis.optional:
                seen |= own
        return binders

    def bind(self, operands: tuple[OptionalTensor, ...], sequences: OptionalTensor, options: tuple[Any, ...]) -> Dims:
        """The size of every letter; the library compares the others with them."""
        dims = Dims(_DIGITS)
        for i, axis, binds in self.binders:
            x = operands[i]
            if x is None:
                continue
            rank = x.dim()
            if rank != axis.rank and (rank < axis.rank or not axis.leads):
                raise _core.ShapeError(
                    f"krait::{self.name}: {axis.name} has shape {list(x.shape)}, but its axes are {axis.text()}")
            if not binds:
                continue
            shape = x.shape
            lead = rank - axis.rank
            if axis.leads:
                dims.setdefault("..", tuple(shape[:lead]))
            for j, letter in enumerate(axis.letters, lead):
                if letter not in dims:
                    dims[letter] = shape[j]
        if "q" not in dims and "b" in dims:
            dims["q"] = dims["b"] if sequences is None else sequences.shape[0]
        self.add_sizes(dims, options)
        return dims

    def fake(self, *args: Any) -> Any:
        dims = self.bind(args[: self.n_in], args[self.n_in], args[self.n_in + 1:])
        first = args[0]
        made = tuple(first.new_empty(dims.shape(axis), dtype=self._result_dtype(axis, first)) for axis in self.results)
        return made if self.n_out > 1 else made[0]

    def _result_dtype(self, axis: Axis, first: torch.Tensor) -> torch.dtype:
        is_own = axis.is_activation or (axis.is_kept_narrow and kernels.keeps(first))
        return first.dtype if is_own else kernels.compute_dtype(first)

    def _made_dtype(self, axis: Axis, is_narrow: bool, first: torch.Tensor) -> torch.dtype:
        """The type in which the kernel writes a result."""
        if kernels.keeps(first) and is_narrow and (axis.is_activation or axis.is_kept_narrow):
            return first.dtype
        return kernels.compute_dtype(first)

    def gradient_dtypes(self, operands: Views, dtype: torch.dtype) -> list[torch.dtype]:
        """The types in which the kernels write gradients of the operands."""
        return [x.dtype if x is not None and narrow and kernels.keeps(x) else dtype
                for x, narrow in zip(operands, self.narrow.made)]

    def fake_backward(self, *args: Any) -> list[torch.Tensor]:
        mask = args[-1]
        return [torch.empty_like(x, memory_format=torch.contiguous_format)
                for i, x in enumerate(args[: self.n_in]) if mask >> i & 1]

    # ---- kernels ----

    def read(self, operands: Views, dtype: torch.dtype, narrow: list[bool]) -> Views:
        """Operands as the kernels take them."""
        return [x if x is None or (x.dtype is dtype and x.is_contiguous())
                else kernels.as_read(x, dtype, axis.tokens, self.takes_any_type, is_narrow)
                for axis, x, is_narrow in zip(self.operands, operands, narrow)]

    def forward(self, *args: Any) -> Any:
        sequences, options = args[self.n_in], args[self.n_in + 1:]
        first = args[0]
        dims = self.bind(args[: self.n_in], sequences, options)
        dtype = kernels.compute_dtype(first)
        if sequences is not None and not first.is_cpu:
            sequences = kernels.shared_list(sequences)
        make = first.new_empty if sequences is None else first.new_zeros
        made = [make(dims.shape(axis), dtype=self._made_dtype(axis, narrow, first))
                for axis, narrow in zip(self.results, self.narrow.results)]
        self.run_forward(dims, self.read(args[: self.n_in], dtype, self.narrow.operands), made, sequences, options)
        if sequences is not None and not first.is_cpu:
            kernels.retain(sequences)
        if first.dtype is not dtype:
            made = [y.to(first.dtype) if axis.is_activation else y for axis, y in zip(self.results, made)]
        return tuple(made) if self.n_out > 1 else made[0]

    def backward(self, *args: Any) -> list[torch.Tensor]:
        """args: operands, kept results, gradients of results, sequences, options, mask of the gradients wanted."""
        at = self.n_in + len(self.kept)
        n_views = at + len(self.given)
        sequences, options, mask = args[n_views], args[n_views + 1: -1], args[-1]
        operands, first = args[: self.n_in], args[0]
        dims = self.bind(operands, sequences, options)
        dtype = kernels.compute_dtype(first)
        if sequences is not None and not first.is_cpu:
            sequences = kernels.shared_list(sequences)
        rest = [kernels.as_read(x, dtype, narrow=narrow)
                for x, narrow in zip(args[self.n_in: n_views], self.narrow.kept + self.narrow.given)]
        made = [torch.empty(x.shape, dtype=own, device=x.device) if mask >> i & 1 else None
                for i, (x, own) in enumerate(zip(operands, self.gradient_dtypes(operands, dtype)))]
        self.run_backward(dims, self.read(operands, dtype, self.narrow.operands_backward), rest[: len(self.kept)],
                          rest[len(self.kept):], made, sequences, options)
        if sequences is not None and not first.is_cpu:
            kernels.retain(sequences)
        return [g if g.dtype is x.dtype else g.to(x.dtype) for g, x in zip(made, operands) if g is not None]

    # ---- autograd ----

    def setup_context(self, ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        outputs = output if self.n_out > 1 else (output,)
        constant = [y for i, y in enumerate(outputs) if i not in self.given]
        if constant:
            ctx.mark_non_differentiable(*constant)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs[: self.n_in + 1], *(outputs[i] for i in self.kept))
        ctx.options = inputs[self.n_in + 1:]

    def differentiate(self, ctx: Any, *grads: Any) -> tuple[Any, ...]:
        saved = ctx.saved_tensors
        operands, sequences, kept = saved[: self.n_in], saved[self.n_in], saved[self.n_in + 1:]
        nothing: list[Any] = [None] * (self.n_in + 1 + self.n_options)
        mask = 0
        for i in range(self.n_in):
            if ctx.needs_input_grad[i] and operands[i] is not None and self.variable[i]:
                mask |= 1 << i
        given = [grads[i] for i in self.given]
        if not mask or all(g is None for g in given):
            return tuple(nothing)
        made = iter(self.backward_call(*operands, *kept, *given, sequences, *ctx.options, mask))
        for i in range(self.n_in):
            if mask >> i & 1:
                nothing[i] = next(made)
        return tuple(nothing)

    def _register_autograd(self) -> None:
        """As torch.library.register_autograd, but that plain tensors of the CPU go to the kernel at once: a second way
        through torch's dispatcher takes longer than all that a small call computes."""
        if not hasattr(torch._C, "_any_requires_grad"):  # before torch 2.6
            torch.library.register_autograd(f"krait::{self.name}", self.differentiate, setup_context=self.setup_context,
                                            lib=LIBRARY)
            return
        after, plain = torch._C._after_autograd_keyset, _plain_keys()

        def compute(keyset: Any, args: tuple[Any, ...]) -> Any:
            keyset = keyset & after
            if keyset.raw_repr() in plain:
                return self.forward(*args)
            with torch._C._AutoDispatchBelowAutograd():
                return self.forward_call.redispatch(keyset, *args)

        def forward(ctx: Any, *args: Any) -> Any:
            output = compute(args[-1], args[:-1])
            self.setup_context(ctx, args[:-1], output)
            return output

        def backward(ctx: Any, *grads: Any) -> Any:
            return *self.differentiate(ctx, *grads), None

        function = type(f"Krait_{self.name}", (torch.autograd.Function,),
                        {"forward": staticmethod(forward), "backward": staticmethod(backward)})

        def kernel(keyset: Any, *args: Any) -> Any:
            if torch._C.is_grad_enabled() and torch._C._any_requires_grad(*args):
                return function.apply(*args, keyset)  # type: ignore[attr-defined]
            return compute(keyset, args)

        LIBRARY.impl(self.name, kernel, "Autograd", with_keyset=True)

    # ---- autocast and vmap ----

    def autocast_kernel(self, key: str, dtype: torch.dtype) -> Callable[..., Any]:
        """Under autocast on a GPU the operands of matrix products are cast to bf16; steps, decays and states stay f32."""
        keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))
        casts = [axis.name in self.autocast for axis in self.operands]

        def kernel(*args: Any) -> Any:
            operands = [x.to(dtype) if cast and x is not None and x.dtype in (torch.float32, torch.float16) else x
                        for x, cast in zip(args, casts)]
            with torch._C._ExcludeDispatchKeyGuard(keys):
                return self.forward_call(*operands, *args[self.n_in:])

        return kernel

    def vmap(self, info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Any, Any]:
        """Folds the mapped axis into b. Where an operand without b is mapped, or rows are packed, one call each."""
        count = info.batch_size
        n = self.n_in + 1
        mapped = [d is not None for d in in_dims[:n]]
        folds = not mapped[-1] and args[self.n_in] is None and not any(
            m and not (axis.leads or axis.letters[0] in "bq") for m, axis in zip(mapped, self.operands))
        if not folds:
            return self._vmap_loop(count, in_dims, args)
        folded = []
        for axis, x, d in zip(self.operands, args, in_dims):
            if x is None or not (axis.leads or axis.letters[0] in "bq"):
                folded.append(x)
                continue
            x = x.expand(count, *x.shape) if d is None else x.movedim(d, 0)
            folded.append(x.reshape(count * x.shape[1], *x.shape[2:]) if x.dim() > axis.rank else x)
        out = self.forward_call(*folded, *args[self.n_in:])
        outs = out if self.n_out > 1 else (out,)
        back = tuple(y.reshape(count, -1, *y.shape[1:]) for y in outs)
        return (back, (0,) * self.n_out) if self.n_out > 1 else (back[0], 0)

    def _vmap_loop(self, count: int, in_dims: tuple[Any, ...], args: tuple[Any, ...]) -> tuple[Any, Any]:
        calls = [self.forward_call(*(x if d is None else x.select(d, i) for x, d in zip(args, in_dims)))
                 for i in range(count)]
        if self.n_out == 1:
            return torch.stack(calls), 0
        return tuple(torch.stack(parts) for parts in zip(*calls)), (0,) * self.n_out

    # ---- registration ----

    def _register(self, options: str) -> None:
        def tensor(axis: Axis, prefix: str = "", optional: bool | None = None) -> str:
            optional = axis.optional if optional is None else optional
            return f"Tensor{'?' if optional else ''} {prefix}{axis.name}"

        name, full, tail = self.name, f"krait::{self.name}", f", {options}" if options else ""
        ins = ", ".join(tensor(axis) for axis in self.operands)
        outs = "Tensor" if self.n_out == 1 else "(" + ", ".join(["Tensor"] * self.n_out) + ")"
        LIBRARY.define(f"{name}({ins}, Tensor? sequences{tail}) -> {outs}", tags=(torch.Tag.pt2_compliant_tag,))
        for device in _DEVICES:
            LIBRARY.impl(name, self.forward, device)
        torch.library.register_fake(full, self.fake, lib=LIBRARY)

        kept = "".join(f", {tensor(self.results[i], 'kept_')}" for i in self.kept)
        given = "".join(f", {tensor(self.results[i], 'g_', True)}" for i in self.given)
        back = f"({ins}{kept}{given}, Tensor? sequences{tail}, int mask) -> Tensor[]"
        define_backward(name, back, self.backward, self.fake_backward)
        self.forward_call = getattr(NAMESPACE, name).default
        self._register_autograd()
        torch.library.register_vmap(full, self.vmap, lib=LIBRARY)
        if self.autocast:
            LIBRARY.impl(name, self.autocast_kernel("AutocastCUDA", torch.bfloat16), "AutocastCUDA")
        self.backward_call = getattr(NAMESPACE, f"{name}_backward").default


class RawOp(Op):
    """An op that is one raw op of the library."""

    all: list["RawOp"] = []

    def __init__(self, name: str, operands: str, results: str, raw: str, *, to_raw: str = "", call: Call = lambda *_: (),
                 call_backward: Call | None = None, alike: bool = False, grouped: bool = False, **rest: str) -> None:
        """to_raw: names of operands and results in the raw signature, where they differ. call: from options to arguments of
        `kernels.run`; call_backward: of the backward op, where it has fewer options. alike: strided rows, but for those of
        the second operand, have one stride. grouped: the first option is the size of axis e."""
        self.forward_op, self.backward_op = _core.raw_ops[raw], _core.raw_ops[raw + "_backward"]
        self.call, self.call_backward = call, call_backward or call
        self.alike, self.grouped = alike, grouped
        super().__init__(name, operands, results, **rest)
        self._set_orders(raw, dict(pair.split("=") for pair in to_raw.split()))
        self._make_calls()
        self.all.append(self)

    def _make_calls(self) -> None:
        """The calls for operands that need no preparation."""
        def texts(axes: Sequence[Axis], optional: bool | None = None) -> tuple[str, ...]:
            def end(axis: Axis) -> str:
                return "?" if (axis.optional if optional is None else optional) else ""

            return tuple((".." if axis.leads else "") + axis.letters + end(axis) for axis in axes)

        kept = texts([self.results[i] for i in self.kept])
        given = texts([self.results[i] for i in self.given], True)
        operands, own = texts(self.operands), self.narrow
        # results of the type of an operand: activations of that of the first, gradients of that of their operand
        self.forward_op_call = _core.OpCall(
            self.forward_op, operands, texts(self.results), tuple(self.forward_order), (*own.operands, *own.results),
            tuple(0 if axis.is_activation else -1 for axis in self.results))
        self.backward_op_call = _core.OpCall(
            self.backward_op, operands + kept + given, texts(self.operands), tuple(self.backward_order),
            (*own.operands_backward, *own.kept, *own.given, *own.made), tuple(range(self.n_in)))

    def _set_orders(self, raw: str, to_raw: dict[str, str]) -> None:
        """For each view of the raw ops its index in what `forward` and `backward` make views of, -1: absent; and which of
        the views may be bf16 on a GPU."""
        def known_as(axis: Axis) -> str:
            return to_raw.get(axis.name, axis.name)

        ins, outs = [known_as(axis) for axis in self.operands], [known_as(axis) for axis in self.results]
        kept, given = [outs[i] for i in self.kept], ["g_" + outs[i] for i in self.given]
        made = ["g_" + x for x in ins]

        def order(op: int, known: list[str]) -> list[int]:
            return [known.index(name) if name in known else -1 for name in raw_names(op)]

        def narrow(names: list[str], suffix: str = "") -> list[bool]:
            return [kernels.takes_bf16(raw + suffix, name) for name in names]

        self.forward_order = order(self.forward_op, ins + outs)
        self.backward_order = order(self.backward_op, ins + kept + given + made)
        back = "_backward"
        self.narrow = Narrow(narrow(ins), narrow(outs), narrow(ins, back), narrow(kept, back), narrow(given, back),
                              narrow(made, back))

    def forward(self, *args: Any) -> Any:
        if args[self.n_in] is None:
            made = kernels.run_simple(self.forward_op_call, args, -1, self.call(*args[self.n_in + 1:]))
            if made is not None:
                return tuple(made) if self.n_out > 1 else made[0]
        return super().forward(*args)

    def backward(self, *args: Any) -> list[torch.Tensor]:
        n_views = self.n_in + len(self.kept) + len(self.given)
        if args[n_views] is None:
            made = kernels.run_simple(self.backward_op_call, args, args[-1], self.call_backward(*args[n_views + 1: -1]))
            if made is not None:
                return made
        return super().backward(*args)

    def add_sizes(self, dims: Dims, options: tuple[Any, ...]) -> None:
        if self.grouped:
            dims["e"] = options[0]

    def gradient_dtypes(self, operands: Views, dtype: torch.dtype) -> list[torch.dtype]:
        own = super().gradient_dtypes(operands, dtype)
        names = [axis.name for axis in self.operands]
        if "b" in names and "c" in names:  # which the kernel writes in one type
            b, c = names.index("b"), names.index("c")
            if own[b] is not own[c]:
                own[b] = own[c] = dtype
        return own

    def read(self, operands: Views, dtype: torch.dtype, narrow: list[bool]) -> Views:
        read = super().read(operands, dtype, narrow)
        if self.alike and len({x.stride()[-2] for x in read if x is not None and x.dim() > 1 and x is not read[1]}) > 1:
            read = [kernels.as_read(x, dtype) for x in read]
        return read

    def run_forward(self, dims: Dims, operands: Views, results: Views, sequences: OptionalTensor,
                    options: tuple[Any, ...]) -> None:
        views = [*operands, *results]
        ordered = tuple([views[i] if i >= 0 else None for i in self.forward_order])
        kernels.run(self.forward_op, ordered, sequences, *self.call(*options))

    def run_backward(self, dims: Dims, operands: Views, kept: Views, given: Views, made: Views,
                     sequences: OptionalTensor, options: tuple[Any, ...]) -> None:
        views = [*operands, *kept, *given, *made]
        ordered = tuple([views[i] if i >= 0 else None for i in self.backward_order])
        kernels.run(self.backward_op, ordered, sequences, *self.call_backward(*options))


class LinearOp(Op):
    """y = x weight^T + bias by the library's products, which on the CPU share its thread pool with the kernels around."""

    def __init__(self, *args: Any, **rest: Any) -> None:
        super().__init__(*args, **rest)
        a, b, y = (kernels.takes_bf16("matmul", view) for view in "aby")
        self.narrow = Narrow([a, b, False], [y], [a and b, a and b, False], [], [a], [y, y, False])

    def run_forward(self, dims: Dims, operands: Views, results: Views, sequences: OptionalTensor,
                    options: tuple[Any, ...]) -> None:
        x, weight, bias = operands
        kernels.matmul(x.flatten(0, -2), weight.t(), results[0].flatten(0, -2), bias)

    def run_backward(self, dims: Dims, operands: Views, kept: Views, given: Views, made: Views,
                     sequences: OptionalTensor, options: tuple[Any, ...]) -> None:
        x, weight, _ = operands
        g_x, g_weight, g_bias = made
        g_y = given[0].flatten(0, -2)
        if g_x is not None:
            kernels.matmul(g_y, weight, g_x.flatten(0, -2))
        if g_weight is not None:
            kernels.matmul(g_y.t(), x.flatten(0, -2), g_weight)
        if g_bias is not None:
            torch.sum(g_y, 0, dtype=g_bias.dtype, out=g_bias)


class AddNormOp(Op):
    """total = x + residual, y = RMS norm of total: the sum is computed and kept in the computing type."""

    takes_any_type = True

    def __init__(self, *args: Any, **rest: Any) -> None:
        super().__init__(*args, **rest)
        y, g_y = kernels.takes_bf16("norm", "y"), kernels.takes_bf16("norm_backward", "g_y")
        self.narrow = Narrow([True, False, False], [y, False, False], [True, False, False], [False, False], [g_y, False],
                             [True, False, False])

    def add_sizes(self, dims: Dims, options: tuple[Any, ...]) -> None:
        dims["e"] = 1

    def run_forward(self, dims: Dims, operands: Views, results: Views, sequences: OptionalTensor,
                    options: tuple[Any, ...]) -> None:
        x, residual, gain = operands
        y, total, q = results
        if residual is None:
            total.copy_(x)
        else:
            torch.add(x, residual, out=total)
        kernels.run(_NORM, (total, None, gain, y, q), None, 0, 0, 1, *options)

    def run_backward(self, dims: Dims, operands: Views, kept: Views, given: Views, made: Views,
                     sequences: OptionalTensor, options: tuple[Any, ...]) -> None:
        gain, (total, q), (g_y, g_total), (g_x, g_residual, g_gain) = operands[2], kept, given, made
        sum_ = torch.empty_like(total) if g_residual is None else g_residual
        if g_y is None:
            sum_.copy_(g_total)
            if g_gain is not None:
                g_gain.zero_()
        else:
            kernels.run(_NORM_BACKWARD, (total, None, gain, q, g_y, sum_, None, g_gain), None, 0, 0, 1, *options)
            if g_total is not None:
                sum_ += g_total
        if g_x is not None:
            g_x.copy_(sum_)


# ---- the table ----

# sequences, an operand of every op: int64 [q 3] on the host, row, start and end of each; None: each row is one.


def _chunked(chunk_len: int) -> tuple[Any, ...]:
    return 0, chunk_len


RawOp("ssd", "x:b.s.hp~ da:bsh w:bsh b:b.s.gr c:b.s.gr d:h? initial:qhpr?", "y:bshp~ final:qhpr", "ssd",
   options="int chunk_len", to_raw="x=v", call=_chunked, autocast="x b c")

RawOp("ssd3_single", "v:b.s.mhp~ b:b.s.mgr c:b.s.mgr da:bsh scale:bsh gamma:bsh d:h? initial:qhpr? carry:bsh? boundary:qh? "
   "boundary_v:qmhp? boundary_b:qmhr?", "y:bsmhp~ final:qhpr", "ssd", options="int chunk_len",
   to_raw="scale=w gamma=diag_weight", call=_chunked, constant="carry", autocast="v b c")

RawOp("ssd3_double", "v:b.s.mhp~ b:b.s.mgr c:b.s.mgr da:bsh d:h? initial:qhpr?", "y:bsmhp~ final:qhpr", "ssd",
   options="int chunk_len", call=_chunked, autocast="v b c")

RawOp("selective_scan", "x:b.s.i~ dt:b.s.i a:ir b:b.s.gr c:b.s.gr d:i? z:b.s.i? initial:qir?", "y:bsi~ final:qir", "scan")

RawOp("causal_conv", "x:b.s.v~ weight:vk bias:v? window:qvk?", "y:bsv~ window_out:qvk", "conv", options="bool silu",
   call=lambda silu: (kernels.SILU if silu else 0,))

RawOp("gated_norm", "x:...i~ z:...i? gain:i?", "y:..i~ q:..e", "norm", keeps="q", constant="q", grouped=True,
   options="int n_groups, float eps, bool norm_first",
   call=lambda n_groups, eps, norm_first: (kernels.NORM_FIRST if norm_first else 0, 0, n_groups, eps))

RawOp("gate", "x:...i~ z:...i", "y:..i~", "gate")

RawOp("trapezoid", "dt_raw:...h dt_bias:h? a_raw:...h lambda_raw:...h", "dt:..h da:..h gamma:..h carry:..h beta:..h",
   "trapezoid",
   options="float a_floor, float dt_min, float dt_max, bool softplus",
   call=lambda a_floor, dt_min, dt_max, softplus: (kernels.SOFTPLUS if softplus else 0, 0, 1, 1e-5, 1.0, a_floor, dt_min,
                                                   dt_max), alike=True)

RawOp("angles", "theta:b.s.a dt:bsh initial:qha?", "angle:bsha final:qha", "angles", options="float range, int chunk_len",
   call=lambda range, chunk_len: (0, chunk_len, 1, 1e-5, range),
      call_backward=lambda range, chunk_len: (0, 0, 1, 1e-5, range))

RawOp("rotate", "x:bsmgr~ bias:hmr? angle:bsha", "y:bsmhr~", "rotate", options="bool split_pairs",
   call=lambda split_pairs: (kernels.SPLIT_PAIRS if split_pairs else 0,))

RawOp("quaternion_exp", "raw:..j3 dt:..", "q:..j4", "quaternion_exp", options="float range",
   call=lambda range: (0, 0, 1, 1e-5, range))

RawOp("quaternion_scan", "q:bshj4 initial:qhj4?", "cum:bshj4 final:qhj4", "quaternion_scan", keeps="cum",
   options="int chunk_len", call=_chunked, call_backward=lambda chunk_len: ())

RawOp("quaternion_rotate", "x:bsmhr~ cum:bshj4", "y:bsmhr~", "quaternion_rotate")

_NORM, _NORM_BACKWARD = _core.raw_ops["norm"], _core.raw_ops["norm_backward"]

AddNormOp("add_rms_norm", "x:...i~ residual:...i? gain:i?", "y:..i~ total:..i q:..e", keeps="total q", constant="q",
          options="float eps")

LinearOp("linear", "x:...i~ weight:oi bias:o?", "y:..o~", autocast="x weight")


# ---- ops composed of others: autograd, compilers and vmap see those ----


def _softplus_dt(dt: torch.Tensor, bias: OptionalTensor, low: float, high: float) -> torch.Tensor:
    steps = torch.nn.functional.softplus(dt if bias is None else dt + bias)
    return steps.clamp(low, high) if low > 0 or high < float("inf") else steps


def _qk_norm(x: torch.Tensor, gain: OptionalTensor, bias: OptionalTensor, n_heads: int, eps: float) -> torch.Tensor:
    y: torch.Tensor = NAMESPACE.gated_norm(x, None, gain, None, 1, eps, False)[0].repeat_interleave(n_heads // x.shape[3], 3)
    return y if bias is None else y + bias.transpose(0, 1)


LIBRARY.define("softplus_dt(Tensor dt, Tensor? bias, float low, float high) -> Tensor")
LIBRARY.impl("softplus_dt", _softplus_dt, "CompositeImplicitAutograd")
LIBRARY.define("qk_norm(Tensor x, Tensor? gain, Tensor? bias, int n_heads, float eps) -> Tensor")
LIBRARY.impl("qk_norm", _qk_norm, "CompositeImplicitAutograd")
