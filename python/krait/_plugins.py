"""The CUDA device of the distribution krait-ssm-cuda13, which is loaded when a "cuda" device is first asked for."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

from . import _core

__all__ = ["find_cuda", "load_cuda"]

_is_loaded = False


def find_cuda() -> Path | None:
    """The plug-in of the package krait_cuda13, or None if that is not installed."""
    spec = importlib.util.find_spec("krait_cuda13")
    for folder in (spec and spec.submodule_search_locations) or ():
        path = Path(folder) / "libkrait_cuda.so"
        if path.is_file():
            return path
    return None


def load_cuda() -> None:
    """Loads the plug-in of krait_cuda13 if it is installed. What KR_CUDA_PLUGIN names comes first: the library loads that.

    UnsupportedError if it is of another version than this package.
    """
    global _is_loaded
    path = None if _is_loaded or os.environ.get("KR_CUDA_PLUGIN") else find_cuda()
    if path is None:
        return
    try:
        _core.load_device(str(path))
    except _core.StateError:  # the library was built with CUDA and needs no plug-in
        pass
    _is_loaded = True
