"""Krait's torch ops as the drop-in functions call them: defaults for absent operands, and single tokens."""

from __future__ import annotations

import krait.torch  # registers torch.ops.krait; before torch, whose threads it sets
import torch

from krait.torch import functional

_OPS = torch.ops.krait


def ssd(x, da, w, b, c, d=None, initial=None, sequences=None):
    """x [b s h p], da and w [b s h], b and c [b s g r], d [h], initial [q h p r]. Returns y, final [q h p r]."""
    return _OPS.ssd(x, da, w, b, c, d, initial, sequences, 0)


def selective_scan(x, dt, a, b, c, d=None, z=None, initial=None, sequences=None):
    """x, dt, z [b s i], a [i r], b and c [b s g r], d [i]. Returns y, final [q i r]."""
    return _OPS.selective_scan(x, dt, a, b, c, d, z, initial, sequences)


def causal_conv(x, weight, bias=None, window=None, sequences=None, silu=False):
    """x [b s v], weight [v k], window [q v k]. Returns y, the last k inputs [q v k]."""
    return _OPS.causal_conv(x, weight, bias, window, sequences, silu)


def linear(x, weight, bias=None):
    """x weight^T + bias in the type of the weight, x [.. i], weight [o i]; by the library's products where they are
    faster."""
    bias = None if bias is None else bias.to(weight.dtype)
    return functional.linear(x if x.dtype is weight.dtype else x.to(weight.dtype), weight, bias)


def gated_norm(x, z, gain, eps, n_groups, norm_first):
    """RMS norm over groups of x [.. i], with silu(z) before or after it."""
    return _OPS.gated_norm(x, z, gain, None, n_groups, eps, norm_first and z is not None)[0]


def rms_norm(x, gain, eps):
    """RMS norm of x [.. i]."""
    return _OPS.gated_norm(x, None, gain, None, 1, eps, False)[0]


def mamba2_mixer(zxbcdt, conv_weight, conv_bias, dt_bias, A, d, gain, initial, headdim, n_groups, dt_limit, eps, norm_first):
    """Mamba-2 from its projection to the gated norm in one op. Returns y [b s i], final [b h p r]."""
    return _OPS.mamba2_mixer(
        zxbcdt,
        conv_weight,
        conv_bias,
        dt_bias,
        A,
        d,
        gain,
        initial,
        None,
        None,
        headdim,
        n_groups,
        0,
        float(dt_limit[0]),
        float(dt_limit[1]),
        eps,
        n_groups,
        norm_first,
        True,
    )[:2]


# Single tokens; the state is updated in place.


def ssd_step(state, x, da, w, b, c, d):
    """state [b h p r], x [b h p], da and w [b h], b and c [b g r], d [h]. Returns y [b h p] in the type of x."""
    return _OPS.ssd_step(state, x, da, w, b, c, d)


def scan_step(state, x, dt, a, b, c, d):
    """state [b i r], x and dt [b i], a [i r], b and c [b g r], d [i]. Returns y [b i] in the type of x."""
    return _OPS.scan_step(state, x, dt, a, b, c, d, None)


def conv_step(x, window, weight, bias, silu):
    """x [b v], window [b v k]. Returns y [b v]."""
    return _OPS.conv_step(window, x, weight, bias, silu)
