"""Krait: Mamba-1, Mamba-2 and Mamba-3 on the CPU and on CUDA.

>>> import krait
>>> krait.devices()[0]
'cpu'
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from . import data, notebook
    from ._checks import CheckResult, Checks, check
    from ._models import Evaluation, convert, eval
    from ._training import Progress, Run, train

# Imported when they are asked for, so that `import krait` imports NumPy and nothing else.
_LAZY = {
    "CheckResult": "_checks",
    "Checks": "_checks",
    "Evaluation": "_models",
    "Progress": "_training",
    "Run": "_training",
    "check": "_checks",
    "convert": "_models",
    "data": "data",
    "eval": "_models",
    "notebook": "notebook",
    "train": "_training",
}

__all__ = [
    "ArgumentError",
    "Array",
    "CheckResult",
    "Checks",
    "Context",
    "CopyWarning",
    "DeviceError",
    "DtypeError",
    "Error",
    "Evaluation",
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
    "Progress",
    "Run",
    "ShapeError",
    "State",
    "StateError",
    "Tokenizer",
    "UnsupportedError",
    "__version__",
    "check",
    "convert",
    "data",
    "devices",
    "eval",
    "from_dlpack",
    "load",
    "new",
    "nn",
    "notebook",
    "ssd",
    "train",
]


def devices() -> list[str]:
    """The devices of this machine, one text each: "cpu", "cuda:0 NVIDIA H200, 139 GiB, sm_90", or why a kind is missing.

    Behind GPUs: the cuBLASLt that multiplies matrices, and the plug-in that has the kernels (krait-ssm-cuda13).

    >>> devices()[0]
    'cpu'
    """
    from ._plugins import load_cuda

    try:
        load_cuda()
    except Error as error:
        lines = [line for line in _info("devices").splitlines() if not line.startswith("cuda: ")]
        return [*lines, f"cuda: {error}"]
    return _info("devices").splitlines()


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'krait' has no attribute {name!r}")
    module = import_module(f"krait.{_LAZY[name]}")
    value = module if name == _LAZY[name] else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
