"""Warnings, and exceptions by the name of their status."""

from __future__ import annotations

import warnings

from . import _core


class KraitWarning(UserWarning):
    """A warning of the library, such as unknown keys of a config.json."""


class CopyWarning(KraitWarning):
    """An array was copied or converted before use. Ignored unless asked for: python -W always::krait.CopyWarning"""


KraitWarning.__module__ = CopyWarning.__module__ = "krait"
warnings.filterwarnings("ignore", category=CopyWarning, append=True)

BY_STATUS: dict[str, type[_core.Error]] = {
    kind.status: kind
    for kind in (
        _core.ArgumentError,
        _core.ShapeError,
        _core.DtypeError,
        _core.OutOfMemoryError,
        _core.IoError,
        _core.FormatError,
        _core.UnsupportedError,
        _core.DeviceError,
        _core.NumericError,
        _core.StateError,
    )
}


def of_status(status: str, text: str) -> _core.Error:
    """The exception of a status, such as "numeric"."""
    return BY_STATUS.get(status, _core.Error)(text)
