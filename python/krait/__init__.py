"""Krait: Mamba-1, Mamba-2 and Mamba-3 on the CPU and on CUDA.

>>> import krait
>>> krait.devices()[0]
'cpu'
"""

from __future__ import annotations

from . import nn, ssd
from ._core import (
    ArgumentError,
    Array,
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
    from_dlpack,
)
from ._core import info as _info
from ._errors import CopyWarning, KraitWarning
from ._generate import Generated, Generation
from ._model import Model, load, new
from ._params import Parameter, Params
from ._state import State
from ._tokenizer import Tokenizer

__all__ = [
    "ArgumentError",
    "Array",
    "Context",
    "CopyWarning",
    "DeviceError",
    "DtypeError",
    "Error",
    "FormatError",
    "Generated",
    "Generation",
    "IoError",
    "KraitWarning",
    "Model",
    "NumericError",
    "OutOfMemoryError",
    "Parameter",
    "Params",
    "ShapeError",
    "State",
    "StateError",
    "Tokenizer",
    "UnsupportedError",
    "__version__",
    "devices",
    "from_dlpack",
    "load",
    "new",
    "nn",
    "ssd",
]


def devices() -> list[str]:
    """The devices of this machine, one text each: "cpu", "cuda:0 NVIDIA H200, 139 GiB, sm_90", or why a kind is missing.

    >>> devices()[0]
    'cpu'
    """
    return _info("devices").splitlines()
