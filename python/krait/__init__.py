"""Krait: Mamba-1, Mamba-2 and Mamba-3 on the CPU and on CUDA.

>>> import krait
>>> krait.devices()[0]
'cpu'
"""

from __future__ import annotations

from ._core import (
    ArgumentError,
    Context,
    DeviceError,
    DtypeError,
    Error,
    FormatError,
    IoError,
    NumericError,
    OutOfMemoryError,
    ShapeError,
    StateError,
    UnsupportedError,
    __version__,
)
from ._core import info as _info

__all__ = [
    "ArgumentError",
    "Context",
    "DeviceError",
    "DtypeError",
    "Error",
    "FormatError",
    "IoError",
    "NumericError",
    "OutOfMemoryError",
    "ShapeError",
    "StateError",
    "UnsupportedError",
    "__version__",
    "devices",
]


def devices() -> list[str]:
    """The devices of this machine, one text each: "cpu", "cuda:0 NVIDIA H200, 139 GiB, sm_90", or why a kind is missing.

    >>> devices()[0]
    'cpu'
    """
    return _info("devices").splitlines()
