"""Errors for what these functions do not support."""

from __future__ import annotations

import torch


def refuse_complex(name, *tensors):
    """Complex A is an option of the official scan alone; no model of theirs uses it."""
    for m in tensors:
        if m is not None and m.is_complex():
            raise NotImplementedError(
                f"{name}: A, B or C is complex ({m.dtype}), but Krait's scan is real; split the state into real parts"
            )


def refuse_state_dtype(name, state_dtype):
    """States are kept in f32 (f64 for f64 operands), and are never rounded between chunks."""
    if state_dtype not in (None, torch.float32):
        raise NotImplementedError(
            f"{name}: state_dtype is {state_dtype}, but Krait keeps states in torch.float32; leave it None"
        )


def is_silu(name, activation):
    """Whether the activation is SiLU; None is none."""
    if activation not in (None, "silu", "swish"):
        raise NotImplementedError(f"{name}: activation is {activation!r}, but must be None, 'silu' or 'swish'")
    return activation is not None
