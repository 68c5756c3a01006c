"""krait.Params and krait.Parameter: the weights of a model as arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from . import _core
from ._arrays import NUMPY_TYPES, floats, owned, to_numpy


class Parameter:
    """One weight: read as an array, written by index.

    numpy.asarray(p) is a read-only view of the memory. Writing goes through the library, which then knows that weights
    have changed: packed copies are dropped, and a backward pass over older values is refused.

    >>> import krait, numpy as np
    >>> m = krait.new("mamba2", d_model=16, n_layers=1, vocab_size=256, state_rank=8, per_head_dim=8)
    >>> p = m.params["backbone.norm_f.weight"]
    >>> p.shape, p.dtype_name
    ((16,), 'f32')
    >>> p[:4] = [1, 2, 3, 4]
    >>> p[:2] -= 0.5
    >>> p[:4].tolist()
    [0.5, 1.5, 3.0, 4.0]
    """

    __slots__ = ("_core", "_index", "_on_write", "name", "axes", "shape", "dtype_name", "has_decay")

    def __init__(self, core: _core.Params, index: int, row: tuple[Any, ...], on_write: Callable[[], None]) -> None:
        self._core = core
        self._index = index
        self._on_write = on_write
        self.name: str = row[0]
        self.axes: str = row[1]
        self.shape: tuple[int, ...] = row[2]
        self.dtype_name: str = row[3]
        self.has_decay: bool = row[4]

    def numpy(self) -> npt.NDArray[Any]:
        """A read-only view of the memory; on a GPU a copy."""
        return to_numpy(self._core.array(self._index))

    def read(self, dtype: str | None = None) -> npt.NDArray[Any]:
        """A copy, as float32 unless the weight is f64 or dtype says otherwise."""
        array = self._core.array(self._index)
        wanted = NUMPY_TYPES[dtype or ("f64" if self.dtype_name == "f64" else "f32")]
        out = np.empty(self.shape, wanted)
        array.read(out)
        return out

    def write(self, values: npt.ArrayLike) -> None:
        """Overwrites all elements, converted to the type of the weight."""
        plain, kind = floats(self.name, values)
        if plain.shape != self.shape:
            raise _core.ShapeError(
                f"params.write: {self.name} is {list(self.shape)}, but the values are {list(plain.shape)}"
            )
        self._core.write(self._index, np.ascontiguousarray(plain), kind)
        self._on_write()

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def array(self) -> _core.Array:
        """The memory as a krait.Array, for DLPack."""
        return self._core.array(self._index)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        plain = self.numpy()
        if dtype is not None and plain.dtype != np.dtype(dtype):
            return plain.astype(dtype)
        return plain.copy() if copy else plain

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()

    def __getitem__(self, key: Any) -> Any:
        """A copy of a part, float32 for bf16, so that p[:] -= x changes the copy and then writes it."""
        return np.array(self.read()[key] if self.dtype_name == "bf16" else self.numpy()[key])[()]

    def __setitem__(self, key: Any, value: Any) -> None:
        values = self.read()
        values[key] = np.asarray(value) if not isinstance(value, Parameter) else value.read()
        self.write(values)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError(f"{self.name} has no axes")
        return self.shape[0]

    def __repr__(self) -> str:
        return f"<krait.Parameter {self.name} {list(self.shape)} {self.dtype_name}>"


class Params(Mapping[str, Parameter]):
    """The weights of a model by their names in files, in the order of the table.

    >>> import krait
    >>> m = krait.new("mamba1", d_model=16, n_layers=1, vocab_size=256)
    >>> list(m.params)[:2]
    ['backbone.layers.0.mixer.A_log', 'backbone.layers.0.mixer.D']
    """

    __slots__ = ("_core", "_rows", "_index", "_on_write")

    def __init__(self, core: _core.Params, on_write: Callable[[], None] = lambda: None) -> None:
        self._core = core
        self._rows = core.rows()
        self._index = {row[0]: i for i, row in enumerate(self._rows)}
        self._on_write = on_write

    def __getitem__(self, name: str) -> Parameter:
        i = self._index[name]
        return Parameter(self._core, i, self._rows[i], self._on_write)

    def __setitem__(self, name: str, values: npt.ArrayLike) -> None:
        self[name].write(values)

    def __iter__(self) -> Iterator[str]:
        return iter(self._index)

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def elements(self) -> int:
        """Number of elements of all weights."""
        return self._core.elements

    def reset(self) -> None:
        """Initialises all weights again, from the context's random stream (Context.seed)."""
        self._core.reset()
        self._on_write()

    def pack(self) -> None:
        """Packs a second copy of the projections, with which single steps run at the speed of memory."""
        self._core.pack(True)

    def unpack(self) -> None:
        """Frees the packed copies."""
        self._core.pack(False)

    def save(self, path: str) -> None:
        """Saves all weights to a safetensors file. To save a model: Model.save."""
        self._core.save(path)

    def load(self, path: str) -> None:
        """Loads all weights from a safetensors file with exactly these names and shapes."""
        self._core.load(path)
        self._on_write()

    def __repr__(self) -> str:
        return self._core.describe()


def empty_gradients(core: _core.Params) -> dict[str, npt.NDArray[Any]]:
    """Arrays for the gradients of all parameters: f64 for f64, otherwise f32."""
    return {
        name: np.empty(shape, np.float64 if dtype == "f64" else np.float32) for name, _, shape, dtype, _ in core.rows()
    }


__all__ = ["Parameter", "Params", "empty_gradients", "owned"]
