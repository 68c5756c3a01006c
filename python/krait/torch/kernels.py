"""The library's kernels on the memory of torch tensors: one call, no tape, no copy unless the kernel needs one.

Every op and every fused mixer of krait.torch ends in `run`. It keeps one context per device, follows torch's number of
threads and current stream, and checks element type and device of each operand before anything is read.
"""

from __future__ import annotations

import os
import threading
from typing import Any, Optional, Sequence

import torch

from krait import _core

Shape = Sequence[int]
OptionalTensor = Optional[torch.Tensor]

# Bits of the flags of a call.
SILU, NORM_FIRST, SPLIT_PAIRS, SOFTPLUS, ACCUMULATE = 1, 2, 4, 8, 16

_HALVES = (torch.bfloat16, torch.float16)
_PRECISIONS = {"exact": 0, "tf32": 1, "bf16": 2}
_OF_TORCH = {"highest": 0, "high": 1, "medium": 2}

_contexts: dict[str, Any] = {}
_lock = threading.Lock()
_copies = 0
_precision: int | None = None


def _forget_contexts() -> None:
    """In a forked child, which may not compute with its parent's contexts."""
    global _lock
    _lock = threading.Lock()
    _contexts.clear()


os.register_at_fork(after_in_child=_forget_contexts)


def copies(reset: bool = False) -> int:
    """How many operands had to be copied, because a kernel cannot read them where they are or in their type."""
    global _copies
    count = _copies
    if reset:
        _copies = 0
    return count


def _count_copy() -> None:
    global _copies
    _copies += 1


class _Precision:
    """What `precision` returns: the previous value comes back at the end of a `with` block."""

    def __init__(self, before: int | None) -> None:
        self._before = before

    def __enter__(self) -> "_Precision":
        return self

    def __exit__(self, *_: object) -> None:
        global _precision
        _precision = self._before


def precision(name: str | None) -> _Precision:
    """Precision of matrix products in kernels on a GPU: "exact", "tf32" or "bf16"; None: as torch says.

    Takes effect at once. Used in a `with` statement it ends with the block. Without it
    torch.get_float32_matmul_precision() decides: highest is exact, high is tf32, medium is bf16.
    """
    global _precision
    if name is not None and name not in _PRECISIONS:
        raise ValueError(f"precision: {name!r} must be exact, tf32 or bf16")
    before = _Precision(_precision)
    _precision = None if name is None else _PRECISIONS[name]
    return before


def current_precision() -> int:
    """The precision of the next call, as the library numbers them."""
    if _precision is not None:
        return _precision
    return _OF_TORCH[torch.get_float32_matmul_precision()]


def _new_context(device: torch.device, key: str, threads: int) -> Any:
    with _lock:
        held = _contexts.get(key)
        if held is None or held[1] != threads:
            held = (_core.Context(device=key, threads=threads if device.type == "cpu" else 0), threads)
            _contexts[key] = held
    return held[0]


def _cpu_context() -> Any:
    threads = torch.get_num_threads()
    held = _contexts.get("cpu")
    return held[0] if held is not None and held[1] == threads else _new_context(torch.device("cpu"), "cpu", threads)


def context(device: torch.device) -> Any:
    """The context that serves a device; on the CPU with torch's number of threads."""
    if device.type == "cpu":
        return _cpu_context()
    key = f"cuda:{device.index or 0}"
    held = _contexts.get(key)
    return held[0] if held is not None else _new_context(device, key, 0)


def compute_dtype(x: torch.Tensor) -> torch.dtype:
    """The type that kernels compute in for this operand: f32, or f64."""
    return torch.float32 if x.dtype in _HALVES else x.dtype


def _is_rows(x: torch.Tensor, tokens: int) -> bool:
    """Are the rows of x contiguous, and its first `tokens` axes one axis with a single stride?"""
    expected = 1
    sizes, strides = x.shape, x.stride()
    for size, stride in zip(reversed(sizes[tokens:]), reversed(strides[tokens:])):
        if size != 1 and stride != expected:
            return False
        expected *= size
    for i in range(tokens - 1):
        if sizes[i] != 1 and strides[i] != sizes[i + 1] * strides[i + 1]:
            return False
    return True


def as_read(x: OptionalTensor, dtype: torch.dtype, tokens: int = 0, takes_any_type: bool = False) -> OptionalTensor:
    """x as a kernel reads it: of the computing type, and contiguous; or with `tokens` leading axes of any stride, -1: all
    but the last. Only 16-bit types are converted, others are an error of the kernel, unless any type is taken."""
    if x is None:
        return None
    if x.dtype is not dtype and (takes_any_type or (x.dtype in _HALVES and dtype is torch.float32)):
        _count_copy()
        return x.to(dtype, memory_format=torch.contiguous_format)
    if x.is_contiguous() or (tokens and _is_rows(x, tokens if tokens > 0 else x.dim() - 1)):
        return x
    _count_copy()
    return x.contiguous()


def run(op: int, views: tuple[OptionalTensor, ...], sequences: OptionalTensor = None, flags: int = 0, chunk_len: int = 0,
        *numbers: Any) -> None:
    """Runs a kernel. views: operands, then results, in the order of the library's signature of the op.

    numbers: n_groups, eps, range, a_floor, dt_min, dt_max, as far as the op reads them.
    """
    first = views[0]
    assert first is not None
    if first.is_cpu:
        _core.raw(_cpu_context(), op, views, flags, chunk_len, sequences, 0, *numbers)
    else:
        _run_on_gpu(first.device, op, views, sequences, flags, chunk_len, numbers)


def run_simple(call: Any, args: tuple[Any, ...], mask: int, numbers: tuple[Any, ...]) -> list[torch.Tensor] | None:
    """Runs a _core.OpCall and gives the results in the mask; None, where `run` has to prepare operands first."""
    first = args[0]
    made: list[torch.Tensor] | None
    if first.is_cpu:
        made = call.run(_cpu_context(), args, mask, 0, *numbers)
    else:
        made = call.run(context(first.device), args, mask, current_precision(), *numbers)
    return made


def _run_on_gpu(device: torch.device, op: int, views: tuple[OptionalTensor, ...], sequences: OptionalTensor, flags: int,
                chunk_len: int, numbers: tuple[Any, ...]) -> None:
    """On torch's current stream."""
    if sequences is not None and not sequences.is_pinned():
        sequences = sequences.pin_memory()
    stream, own = torch.cuda.current_stream(device), context(device)
    call: list[Any] = [own, op, views, flags, chunk_len, sequences, current_precision(), *numbers]
    call += [*[None] * (6 - len(numbers)), stream.cuda_stream]
    _core.raw(*call)


_MATMUL = _core.raw_ops["matmul"]


def matmul(a: torch.Tensor, b: torch.Tensor, y: torch.Tensor, bias: OptionalTensor = None, *, adds: bool = False) -> None:
    """y = a b + bias, or added to y: a [j k], b [k i] of any strides, y [j i] of contiguous rows."""
    run(_MATMUL, (a, b, bias, y), None, ACCUMULATE if adds else 0)
