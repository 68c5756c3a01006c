"""Calls of ops on NumPy arrays, and their gradients: what krait.ssd and krait.nn are made of."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from . import _core
from ._arrays import FLOATS, floats, integers, owned, to_numpy
from ._contexts import default_context

Array = npt.NDArray[Any]
MARKS = frozenset(("seq_start", "cu_seqlens", "mask", "reset"))


class Recording:
    """The one op that runs inside vjp, with its tape."""

    def __init__(self) -> None:
        self.tape: _core.Tape | None = None
        self.leaves: dict[str, _core.Array] = {}
        self.outputs: Sequence[_core.Array] = ()


_thread = threading.local()


def common_type(values: Mapping[str, Any]) -> str | None:
    """The type of all float operands if one of them is f64, and what lists of numbers become; None: each as it is."""
    for name, value in values.items():
        if name not in MARKS and getattr(value, "dtype", None) == np.float64:
            return "f64"
    return None


def put(tape: _core.Tape, name: str, value: Any, dtype: str | None, leaves: dict[str, _core.Array] | None) -> Any:
    """An operand on the tape: a view of its memory; a leaf with a gradient if leaves are collected."""
    if value is None:
        return None
    if name in MARKS:
        return tape.view(integers(name, value))
    if not dtype and not (isinstance(value, (np.ndarray, _core.Array)) or hasattr(value, "__dlpack__")):
        value = np.asarray(value, np.float32)
    plain, kind = floats(name, value, dtype)
    if leaves is None:
        return tape.view(plain, kind)
    leaves[name] = tape.leaf(plain, kind)
    return leaves[name]


def run(name: str, operands: Mapping[str, Any], context: _core.Context | None = None, **options: Any) -> Any:
    """Runs an op of the table, and returns its results: one array, or a tuple."""
    recording: Recording | None = getattr(_thread, "recording", None)
    tape = _core.Tape(context or default_context(), grad=recording is not None)
    leaves = None
    if recording is not None:
        if recording.tape is not None:
            raise _core.ArgumentError("vjp: the function calls more than one op")
        recording.tape, leaves = tape, recording.leaves
    dtype = common_type(operands)
    inputs = tuple(put(tape, operand, value, dtype, leaves) for operand, value in operands.items())
    outputs = _core.op(tape, name, inputs, **options)
    if recording is not None:
        recording.outputs = outputs
    arrays = tuple(to_numpy(output) for output in outputs)
    return arrays[0] if len(arrays) == 1 else arrays


def gradient_of(name: str, output: _core.Array, tape: _core.Tape, value: Any) -> _core.Array | None:
    """The gradient of an output, on the tape; its type is that of the output."""
    if value is None:
        return None
    plain, kind = floats(name, np.asarray(value) if isinstance(value, (list, tuple, float, int)) else value, None)
    if plain.dtype in FLOATS and FLOATS[plain.dtype] != output.dtype_name:
        plain, kind = floats(name, plain.astype({"f64": np.float64}.get(output.dtype_name, np.float32)))
    return tape.view(plain, kind)


def backpropagate(tape: _core.Tape, outputs: Sequence[_core.Array], gradients: Sequence[Any]) -> None:
    """Runs the backward pass from the outputs that have a gradient."""
    if len(gradients) > len(outputs):
        raise _core.ArgumentError(f"backward: {len(gradients)} gradients for {len(outputs)} outputs")
    pairs = [(y, gradient_of("gradient", y, tape, g)) for y, g in zip(outputs, gradients) if g is not None]
    if not pairs:
        raise _core.ArgumentError("backward: no gradient is given")
    tape.backward([y for y, _ in pairs], [g for _, g in pairs])


def vjp(function: Callable[..., Any], *operands: Any, **options: Any) -> tuple[Any, Callable[..., dict[str, Array]]]:
    """Runs a function of krait.ssd, and returns its results and `backward`.

    backward(g_y, ...) takes the gradient of each result, or None, and returns the gradients of all operands of floats,
    by name. It can be called once.

    >>> import numpy as np
    >>> from krait import ssd
    >>> y, backward = ssd.vjp(ssd.gate, np.ones((2, 3), np.float32), np.zeros((2, 3), np.float32))
    >>> backward(np.ones((2, 3), np.float32))["z"].tolist()
    [[0.5, 0.5, 0.5], [0.5, 0.5, 0.5]]
    """
    if getattr(_thread, "recording", None) is not None:
        raise _core.ArgumentError("vjp: calls cannot be nested")
    recording = _thread.recording = Recording()
    try:
        results = function(*operands, **options)
    finally:
        _thread.recording = None
    if recording.tape is None:
        raise _core.ArgumentError("vjp: the function is not one of krait.ssd")
    tape: _core.Tape = recording.tape

    def backward(*gradients: Any) -> dict[str, Array]:
        backpropagate(tape, recording.outputs, gradients)
        found = {name: tape.grad(leaf) for name, leaf in recording.leaves.items()}
        return {
            name: owned(g) if g is not None else np.zeros(recording.leaves[name].shape, np.float32)
            for name, g in found.items()
        }

    return results, backward
