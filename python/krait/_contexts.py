"""The contexts that are used where none is given: one for each device, number of threads and precision."""

from __future__ import annotations

import os
import warnings
from typing import Any

from . import _core
from ._errors import KraitWarning

_contexts: dict[tuple[Any, ...], _core.Context] = {}
_pid = os.getpid()


def warn(level: int, text: str) -> None:
    """The log of contexts: warnings of the library become warnings of Python."""
    if level > 0:
        warnings.warn(text, KraitWarning, stacklevel=4)


def default_context(
    device: str | None = None,
    threads: int | None = None,
    precision: str | None = None,
    context: _core.Context | None = None,
) -> _core.Context:
    """`context` if given, else the shared one of these options. A forked child has contexts of its own."""
    global _pid
    if context is not None:
        if device is not None or threads is not None or precision is not None:
            raise TypeError("device, threads and precision belong to the context that is given")
        return context
    if _pid != os.getpid():
        _contexts.clear()
        _pid = os.getpid()
    key = (device, threads, precision)
    if key not in _contexts:
        _contexts[key] = _core.Context(device=device, threads=threads or 0, precision=precision, log=warn)
    return _contexts[key]
