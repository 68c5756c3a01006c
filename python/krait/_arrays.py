"""Arrays of other libraries as operands, and operands of Krait as NumPy arrays."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import numpy.typing as npt

from . import _core
from ._errors import CopyWarning

NUMPY_TYPES: dict[str, Any] = {
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
    "f16": np.dtype(np.float16),
    "i32": np.dtype(np.int32),
    "i64": np.dtype(np.int64),
}
FLOATS = {np.dtype(np.float32): "f32", np.dtype(np.float64): "f64", np.dtype(np.float16): "f16"}
INTEGERS = (np.dtype(np.int32), np.dtype(np.int64))


def bfloat16() -> Any:
    """The bfloat16 of ml_dtypes, or None where that package is missing."""
    try:
        import ml_dtypes
    except ImportError:
        return None
    return np.dtype(ml_dtypes.bfloat16)


def to_numpy(array: _core.Array) -> npt.NDArray[Any]:
    """A NumPy array of the same memory, or a copy of the memory of a GPU."""
    if array.device == "cpu":
        plain = np.asarray(memoryview(array))
    else:
        plain = np.empty(array.shape, NUMPY_TYPES.get(array.dtype_name, np.dtype(np.uint16)))
        array.read(plain, array.dtype_name)
    if array.dtype_name == "bf16":
        kind = bfloat16()
        return plain if kind is None else plain.view(kind)
    return plain


def array_protocol(array: _core.Array, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
    """numpy.asarray of an Array whose memory NumPy cannot take as a buffer."""
    plain = to_numpy(array)
    if dtype is not None and plain.dtype != np.dtype(dtype):
        if copy is False:
            raise ValueError(f"an array of {array.dtype_name} cannot become {np.dtype(dtype)} without a copy")
        return plain.astype(dtype)
    return plain.copy() if copy else plain


def owned(array: _core.Array) -> npt.NDArray[Any]:
    """A copy that Python owns, so that the memory of the tape can be released."""
    if array.dtype_name in NUMPY_TYPES:
        out = np.empty(array.shape, NUMPY_TYPES[array.dtype_name])
        array.read(out)
        return out
    return to_numpy(array).copy()


def _told(name: str, text: str) -> None:
    warnings.warn(f"{name}: {text}", CopyWarning, stacklevel=4)


def _plain(name: str, value: Any) -> npt.NDArray[Any]:
    """Any array as a NumPy array, without a copy if its memory can be shared."""
    if isinstance(value, np.ndarray):
        return value
    if isinstance(value, (_core.Array, memoryview, bytearray)):
        return np.asarray(value)
    if hasattr(value, "__array__") or hasattr(value, "__array_interface__"):
        return np.asarray(value)
    if hasattr(value, "__dlpack__"):
        return np.asarray(_core.from_dlpack(value))
    if isinstance(value, (list, tuple, int, float, bool, np.generic)):
        return np.asarray(value)
    try:
        return np.asarray(memoryview(value))
    except TypeError:
        raise TypeError(
            f"{name} is of type {type(value).__name__}, but must be an array: with __array__, __dlpack__ or a buffer"
        ) from None


def _fits(array: npt.NDArray[Any]) -> bool:
    """Can the library read the memory in place? Strides must be whole elements, and elements aligned."""
    size = array.itemsize
    return array.flags.aligned and all(stride % size == 0 for stride in array.strides) and array.dtype.isnative


def floats(name: str, value: Any, dtype: str | None = None) -> tuple[npt.NDArray[Any], str | None]:
    """An operand of floats, and its type if NumPy has no name for it. dtype: the type that it must have; None: any."""
    array = _plain(name, value)
    kind = bfloat16() if array.dtype.itemsize == 2 and array.dtype.kind == "V" or array.dtype.name == "bfloat16" else None
    if kind is not None and array.dtype == kind:
        if dtype in (None, "bf16"):
            return array.view(np.uint16), "bf16"
    elif array.dtype.kind not in "fiub":
        raise _core.DtypeError(f"{name} has elements of {array.dtype}, but must have floats")
    wanted = NUMPY_TYPES[dtype] if dtype else array.dtype if array.dtype in FLOATS else NUMPY_TYPES["f32"]
    if array.dtype != wanted:
        if array.dtype.kind == "f" or kind is not None:
            _told(name, f"converted from {array.dtype} to {wanted}")
        array = array.astype(wanted)
    elif not _fits(array):
        _told(name, "copied, because its strides or byte order cannot be read in place")
        array = np.ascontiguousarray(array, dtype=wanted.newbyteorder("="))
    return array, None


def integers(name: str, value: Any) -> npt.NDArray[Any]:
    """An operand of integers: ids, labels, masks."""
    array = _plain(name, value)
    if array.size == 0 and not isinstance(value, np.ndarray):
        array = array.astype(np.int64)
    if array.dtype.kind not in "iub":
        raise _core.DtypeError(f"{name} has elements of {array.dtype}, but must have integers")
    if array.dtype not in INTEGERS or not _fits(array):
        if isinstance(value, np.ndarray):
            _told(name, f"converted from {array.dtype} to int64")
        array = array.astype(np.int64)
    return array


def ids32(name: str, value: Any) -> npt.NDArray[np.int32]:
    """A row of token ids as contiguous 32-bit integers."""
    array = integers(name, value)
    if array.ndim != 1:
        raise _core.ShapeError(f"{name} has {array.ndim} axes, but must be a row of token ids")
    if array.size and (int(array.max()) > 2**31 - 1 or int(array.min()) < -(2**31)):
        raise _core.ArgumentError(f"{name} has an id that does not fit into 32 bits")
    return np.ascontiguousarray(array, dtype=np.int32)
