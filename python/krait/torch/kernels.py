"""The library's kernels on the memory of torch tensors: one call, no tape, no copy unless the kernel needs one.

Every op and every fused mixer of krait.torch ends in `run`. It keeps one context per device, follows torch's number of
threads and current stream, and checks element type and device of each operand before anything is read. On a GPU all memory
is torch's: work memory of a call is a tensor, so that a CUDA graph holds it, and what a context keeps is from torch's
allocator.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections import deque
from functools import partial
from typing import Any, Callable, Optional, Sequence

import torch

from krait import _core

Shape = Sequence[int]
OptionalTensor = Optional[torch.Tensor]

# Bits of the flags of a call.
SILU, NORM_FIRST, SPLIT_PAIRS, SOFTPLUS, ACCUMULATE = 1, 2, 4, 8, 16

_HALVES = (torch.bfloat16, torch.float16)
_PRECISIONS = {"exact": 0, "tf32": 1, "bf16": 2}
_OF_TORCH = {"highest": 0, "high": 1, "medium": 2}
_BF16 = _PRECISIONS["bf16"]

_contexts: dict[str, Any] = {}
_gpus: dict[int, tuple[Any, Callable[[int], torch.Tensor]]] = {}  # context, and what allocates its work memory
_lock = threading.Lock()
_copies = 0
_precision: int | None = None


def _forget_contexts() -> None:
    """In a forked child, which may not compute with its parent's contexts."""
    global _lock
    _lock = threading.Lock()
    _contexts.clear()
    _gpus.clear()


os.register_at_fork(after_in_child=_forget_contexts)
atexit.register(_forget_contexts)  # while torch can still take its memory back


class OutOfMemoryError(_core.OutOfMemoryError, torch.cuda.OutOfMemoryError):
    """The library has no memory of a GPU. Memory that torch allocates for a call raises torch's class alone."""


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


def precision_of(x: torch.Tensor) -> int:
    """The precision of a call with this operand, as the library numbers them. Products of bf16 are bf16."""
    if _precision is not None:
        return _precision
    return _BF16 if x.dtype is torch.bfloat16 else _OF_TORCH[torch.get_float32_matmul_precision()]


# ---- contexts ----


class _DeviceMemory:
    """Memory of a context from torch's allocator, which reuses a block in the order of the stream that it is for."""

    def __init__(self, index: int) -> None:
        self._index = index
        self._streams: dict[int, int] = {}

    def _stream(self, number: int) -> Any:
        return torch.cuda.ExternalStream(number, device=self._index) if number else torch.cuda.default_stream(self._index)

    def alloc(self, size: int, stream: int) -> int:
        number = 0 if stream == 1 else stream  # 1: the legacy default stream
        address: int = torch.cuda.caching_allocator_alloc(size, self._index, number)
        self._streams[address] = number
        return address

    def free(self, address: int, stream: int) -> None:
        given, number = self._streams.pop(address), 0 if stream == 1 else stream
        if given != number:
            self._stream(given).wait_stream(self._stream(number))
        torch.cuda.caching_allocator_delete(address)


def _cpu_context() -> Any:
    threads = torch.get_num_threads()
    held = _contexts.get("cpu")
    if held is not None and held[1] == threads:
        return held[0]
    with _lock:
        held = (_core.Context(device="cpu", threads=threads), threads)
        _contexts["cpu"] = held
    return held[0]


def _gpu(index: int) -> tuple[Any, Callable[[int], torch.Tensor]]:
    held = _gpus.get(index)
    if held is not None:
        return held
    with _lock:
        if index not in _gpus:
            memory = _DeviceMemory(index)
            own = _core.Context(device=f"cuda:{index}", device_memory=(memory.alloc, memory.free))
            _gpus[index] = own, partial(torch.empty, dtype=torch.uint8, device=torch.device("cuda", index))
    return _gpus[index]


def context(device: torch.device) -> Any:
    """The context that serves a device; on the CPU with torch's number of threads."""
    return _cpu_context() if device.type == "cpu" else _gpu(device.index or 0)[0]


# ---- operands ----


def _types_of_operands() -> dict[str, bool]:
    """Which operands of kernels on a GPU may be bf16, by the library's names: "conv_bwd.x"."""
    rows = [line.split("\t") for line in _core.info("kernels").splitlines()]
    return {row[0]: "bf16" in row[-1] for row in rows if "." in row[0]}


_TAKES_BF16 = _types_of_operands()
_OTHER_NAMES = {"matmul.y": "matmul.c", "trapezoid_bwd.g_dt_raw": "trapezoid_bwd.g_raw",
                "trapezoid_bwd.g_a_raw": "trapezoid_bwd.g_raw", "trapezoid_bwd.g_lambda_raw": "trapezoid_bwd.g_raw"}


def takes_bf16(raw: str, view: str) -> bool:
    """May this view of a raw op be bf16 on a GPU?"""
    name = f"{raw.replace('_backward', '_bwd')}.{view}"
    return _TAKES_BF16.get(_OTHER_NAMES.get(name, name), False)


def keeps(x: torch.Tensor) -> bool:
    """Is this of a type that kernels read and write themselves, where they can? bf16 on a GPU."""
    return x.dtype is torch.bfloat16 and x.device.type == "cuda"


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


def as_read(x: OptionalTensor, dtype: torch.dtype, tokens: int = 0, takes_any_type: bool = False,
            narrow: bool = False) -> OptionalTensor:
    """x as a kernel reads it: of the computing type, and contiguous; or with `tokens` leading axes of any stride, -1: all
    but the last. Only 16-bit types are converted, others are an error of the kernel, unless any type is taken. narrow: the
    kernel takes bf16 there."""
    if x is None:
        return None
    if x.dtype is not dtype and (takes_any_type or (x.dtype in _HALVES and dtype is torch.float32)) and not (
            narrow and keeps(x)):
        _count_copy()
        return x.to(dtype, memory_format=torch.contiguous_format)
    if x.is_contiguous() or (tokens and _is_rows(x, tokens if tokens > 0 else x.dim() - 1)):
        return x
    _count_copy()
    return x.contiguous()


# ---- sequences on a GPU ----

_retained: deque[tuple[torch.cuda.Event, torch.Tensor]] = deque()


def shared_list(sequences: torch.Tensor) -> torch.Tensor:
    """sequences in pinned memory, which the host and kernels of a GPU read."""
    if sequences.is_pinned():
        return sequences
    if torch.cuda.is_current_stream_capturing():
        raise _core.StateError(
            "sequences is not in pinned memory, which cannot be allocated while a CUDA graph is captured; make it before, by "
            "functional.sequences(.., pin=True), and keep it as long as the graph")
    return sequences.pin_memory()


def retain(sequences: torch.Tensor) -> None:
    """Keeps the list until the kernels that are queued have run; the host does not wait. What a graph reads is kept by its
    owner: during a capture no event may be asked."""
    if torch.cuda.is_current_stream_capturing():
        return
    while _retained and _retained[0][0].query():
        _retained.popleft()
    event = torch.cuda.Event()
    event.record()
    _retained.append((event, sequences))


# ---- calls ----


def run(op: int, views: tuple[OptionalTensor, ...], sequences: OptionalTensor = None, flags: int = 0, chunk_len: int = 0,
        *numbers: Any, precision: int | None = None) -> None:
    """Runs a kernel. views: operands, then results, in the order of the library's signature of the op.

    numbers: n_groups, eps, range, a_floor, dt_min, dt_max, as far as the op reads them. precision: of products on a GPU;
    None: that of the first operand.
    """
    first = views[0]
    assert first is not None
    if first.is_cpu:
        _core.raw(_cpu_context(), op, views, flags, chunk_len, sequences, 0, *numbers)
        return
    given = precision_of(first) if precision is None else precision
    _run_on_gpu(first.get_device(), op, views, flags, chunk_len, sequences, given, numbers)


_ABSENT: list[tuple[None, ...]] = [(None,) * (6 - n) for n in range(7)]


def _run_on_gpu(index: int, op: int, views: tuple[OptionalTensor, ...], flags: int, chunk_len: int,
                sequences: OptionalTensor, precision: int, numbers: tuple[Any, ...]) -> None:
    """On torch's current stream of the GPU, which need not be the current device and does not become it."""
    if torch._C._cuda_getDevice() != index:
        with torch.cuda.device(index):
            _run_on_gpu(index, op, views, flags, chunk_len, sequences, precision, numbers)
        return
    own, work = _gpu(index)
    rest: tuple[Any, ...] = (*numbers, *_ABSENT[len(numbers)], torch._C._cuda_getCurrentRawStream(index), work)
    try:
        _core.raw(own, op, views, flags, chunk_len, sequences, precision, *rest)
    except _core.OutOfMemoryError as error:
        raise OutOfMemoryError(*error.args) from None


def run_simple(call: Any, args: tuple[Any, ...], mask: int, numbers: tuple[Any, ...]) -> list[torch.Tensor] | None:
    """Runs a _core.OpCall and gives the results in the mask; None, where `run` has to prepare operands first."""
    first = args[0]
    made: list[torch.Tensor] | None
    if first.is_cpu:
        made = call.run(_cpu_context(), args, mask, 0, None, *numbers)
        return made
    index = first.get_device()
    if torch._C._cuda_getDevice() != index:
        return None
    own, work = _gpu(index)
    try:
        made = call.run(own, args, mask, precision_of(first), work, *numbers)
    except _core.OutOfMemoryError as error:
        raise OutOfMemoryError(*error.args) from None
    return made


_MATMUL = _core.raw_ops["matmul"]


def matmul(a: torch.Tensor, b: torch.Tensor, y: torch.Tensor, bias: OptionalTensor = None, *, adds: bool = False,
           precision: int | None = None) -> None:
    """y = a b + bias, or added to y: a [j k], b [k i] of any strides, y [j i] of contiguous rows."""
    run(_MATMUL, (a, b, bias, y), None, ACCUMULATE if adds else 0, precision=precision)
