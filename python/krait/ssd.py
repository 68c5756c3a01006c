"""The sequence mixers and their parts on NumPy arrays: the SSD core, the selective scan, convolution, norms, rotations.

Axes: b rows, s tokens, h heads, p channels of a head, g groups of B and C, r state, i channels, v convolved channels,
m MIMO rank, k taps, a angles, q sequences. Arrays are float32 or float64, all of one type; memory is read in place.
vjp gives gradients. All functions take context=, a krait.Context; None: that of the CPU with all threads.

>>> import numpy as np
>>> from krait import ssd
>>> rng = np.random.default_rng(1)
>>> x = rng.standard_normal((1, 6, 2, 4), dtype=np.float32)
>>> dt = np.full((1, 6, 2), 0.1, np.float32)
>>> b = c = rng.standard_normal((1, 6, 1, 8), dtype=np.float32)
>>> y, final = ssd.ssd(x, dt, np.array([-1, -2], np.float32), b, c)
>>> y.shape, final.shape
((1, 6, 2, 4), (1, 2, 4, 8))
>>> first, state = ssd.ssd(x[:, :3], dt[:, :3], np.array([-1, -2], np.float32), b[:, :3], c[:, :3])
>>> rest, state = ssd.ssd(x[:, 3:], dt[:, 3:], np.array([-1, -2], np.float32), b[:, 3:], c[:, 3:], initial=state)
>>> bool(np.allclose(y, np.concatenate([first, rest], axis=1), atol=1e-5))
True
"""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from . import _core
from ._vjp import run, vjp

Array = npt.NDArray[Any]
Like = Any  # an array: NumPy, DLPack, a buffer, or numbers in lists
Context = _core.Context

__all__ = [
    "causal_conv", "gate", "gated_norm", "layer_norm", "linear", "qk_norm", "quaternion_cumprod",
    "quaternion_increments", "quaternion_rotate", "rms_norm", "rotate", "rotation_angles", "selective_scan", "softplus",
    "ssd", "ssd3_double", "ssd3_single", "trapezoid", "trapezoid_scale", "vjp",
]  # fmt: skip


def ssd(
    x: Like, dt: Like, a: Like, b: Like, c: Like, d: Like | None = None, *,
    initial: Like | None = None, learned_init: Like | None = None, seq_start: Like | None = None,
    cu_seqlens: Like | None = None, algorithm: str = "serial_recalculated", chunk_len: int = 0,
    context: Context | None = None,
) -> tuple[Array, Array]:  # fmt: skip
    """The SSD core of Mamba-2: H_t = exp(dt_t a) H_{t-1} + dt_t x_t B_t,  y_t = H_t C_t + d x_t.

    x [b s h p], dt [b s h] after softplus, a [h] below 0, b and c [b s g r], d [h], initial [b h p r], learned_init
    [h p r]. Returns y [b s h p] and the final state [b h p r]; with seq_start or cu_seqlens a state for each sequence.
    algorithm: 'serial_recalculated' (one fused kernel), 'serial' or 'minimal'. chunk_len 0: the best one.
    """
    operands = dict(
        x=x, dt=dt, a=a, b=b, c=c, d=d, initial=initial, learned_init=learned_init, seq_start=seq_start,
        cu_seqlens=cu_seqlens,
    )  # fmt: skip
    y, final = run("ssd", operands, context, algorithm=algorithm, chunk_len=chunk_len)
    return y, final


def ssd3_double(
    v: Like, da: Like, b: Like, c: Like, d: Like | None = None, *,
    initial: Like | None = None, learned_init: Like | None = None, seq_start: Like | None = None,
    cu_seqlens: Like | None = None, algorithm: str = "serial_recalculated", chunk_len: int = 0,
    context: Context | None = None,
) -> tuple[Array, Array]:  # fmt: skip
    """One pass of the two-pass core of Mamba-3: H_t = exp(da_t) H_{t-1} + sum_m v_t[m] B_t[m],  y_t[m] = H_t C_t[m].

    v [b s m h p], da [b s h], b and c [b s m h r], d [h], initial [b h p r]. Returns y and the final state.
    """
    operands = dict(
        v=v, da=da, b=b, c=c, d=d, initial=initial, learned_init=learned_init, seq_start=seq_start,
        cu_seqlens=cu_seqlens,
    )  # fmt: skip
    y, final = run("ssd3_double", operands, context, algorithm=algorithm, chunk_len=chunk_len)
    return y, final


def ssd3_single(
    v: Like, da: Like, b: Like, c: Like, gamma: Like, scale: Like, d: Like | None = None, *,
    initial: Like | None = None, learned_init: Like | None = None, seq_start: Like | None = None,
    cu_seqlens: Like | None = None, carry0: Like | None = None, v_before: Like | None = None,
    k_before: Like | None = None, algorithm: str = "serial_recalculated", chunk_len: int = 0,
    context: Context | None = None,
) -> tuple[Array, Array]:  # fmt: skip
    """The one-pass core of Mamba-3: H_t = exp(da_t) H_{t-1} + scale_t sum_m v_t[m] B_t[m],
    y_t[m] = exp(da_t) H_{t-1} C_t[m] + gamma_t sum_m' <C_t[m], B_t[m']> v_t[m'].

    v [b s m h p], da, gamma and scale [b s h], b and c [b s m h r], d [h], initial [b h p r]. carry0 [b h], v_before
    [b m h p] and k_before [b m h r], all or none: the token before the first. Returns y and the final state.
    """
    operands = dict(
        v=v, da=da, b=b, c=c, gamma=gamma, scale=scale, d=d, initial=initial, learned_init=learned_init,
        seq_start=seq_start, cu_seqlens=cu_seqlens, carry0=carry0, v_before=v_before, k_before=k_before,
    )  # fmt: skip
    y, final = run("ssd3_single", operands, context, algorithm=algorithm, chunk_len=chunk_len)
    return y, final


def selective_scan(
    x: Like, dt: Like, a: Like, b: Like, c: Like, d: Like | None = None, z: Like | None = None, *,
    initial: Like | None = None, seq_start: Like | None = None, cu_seqlens: Like | None = None,
    context: Context | None = None,
) -> tuple[Array, Array]:  # fmt: skip
    """The selective scan of Mamba-1: H_t = exp(dt_t a) H_{t-1} + dt_t B_t x_t,  y_t = <C_t, H_t> + d x_t, times silu(z).

    x, dt and z [b s i], a [i r] below 0, b and c [b s g r], d [i], initial [b i r]. Returns y and the final state.

    >>> import numpy as np
    >>> one = np.ones((1, 2, 1), np.float32)
    >>> y, final = selective_scan(one, one, -np.ones((1, 1), np.float32), one[..., None], one[..., None])
    >>> y[0, :, 0].astype(np.float64).round(3).tolist()
    [1.0, 1.368]
    """
    operands = dict(x=x, dt=dt, a=a, b=b, c=c, d=d, z=z, initial=initial, seq_start=seq_start, cu_seqlens=cu_seqlens)
    y, final = run("selective_scan", operands, context)
    return y, final


def causal_conv(
    x: Like, weight: Like, bias: Like | None = None, window: Like | None = None, *,
    seq_start: Like | None = None, silu: bool = False, context: Context | None = None,
) -> tuple[Array, Array]:  # fmt: skip
    """Causal depthwise convolution of x [b s v] with weight [v k] and bias [v], then optionally SiLU.

    window [b v k]: the last inputs before the first token. Returns y [b s v] and the window after the last token.

    >>> import numpy as np
    >>> y, window = causal_conv(np.float32([[[1], [2], [3]]]), np.float32([[10, 1]]))
    >>> y[0, :, 0].tolist(), window[0, 0].tolist()
    ([1.0, 12.0, 23.0], [2.0, 3.0])
    """
    operands = dict(x=x, weight=weight, bias=bias, window=window, seq_start=seq_start)
    y, last = run("causal_conv", operands, context, silu=silu)
    return y, last


def rms_norm(
    x: Like, gain: Like | None = None, *, eps: float = 1e-5, groups: int = 1, context: Context | None = None
) -> Array:
    """x / sqrt(mean(x^2) + eps) gain over the last axis, in `groups` equal groups.

    >>> import numpy as np
    >>> rms_norm(np.float32([3, 4]), eps=0).astype(np.float64).round(3).tolist()
    [0.849, 1.131]
    """
    result: Array = run("rms_norm", dict(x=x, gain=gain), context, eps=eps, groups=groups)
    return result


def layer_norm(
    x: Like, gain: Like | None = None, bias: Like | None = None, *, eps: float = 1e-5, groups: int = 1,
    context: Context | None = None,
) -> Array:  # fmt: skip
    """(x - mean) / sqrt(variance + eps) gain + bias over the last axis."""
    result: Array = run("layer_norm", dict(x=x, gain=gain, bias=bias), context, eps=eps, groups=groups)
    return result


def gated_norm(
    x: Like, z: Like, gain: Like | None = None, *, eps: float = 1e-5, groups: int = 1, norm_before_gate: bool = False,
    context: Context | None = None,
) -> Array:  # fmt: skip
    """rms_norm(x silu(z)), or rms_norm(x) silu(z) with norm_before_gate."""
    operands = dict(x=x, z=z, gain=gain)
    result: Array = run("gated_norm", operands, context, eps=eps, groups=groups, norm_before_gate=norm_before_gate)
    return result


def gate(x: Like, z: Like, *, context: Context | None = None) -> Array:
    """x silu(z)."""
    result: Array = run("gate", dict(x=x, z=z), context)
    return result


def softplus(x: Like, bias: Like | None = None, *, context: Context | None = None) -> Array:
    """log(1 + exp(x + bias)): the step size from its projection.

    >>> float(softplus([0.0])[0])
    0.6931471824645996
    """
    result: Array = run("softplus", dict(x=x, bias=bias), context)
    return result


def linear(x: Like, weight: Like, bias: Like | None = None, *, context: Context | None = None) -> Array:
    """x weight^T + bias: x [.. i], weight [o i]."""
    result: Array = run("linear", dict(x=x, weight=weight, bias=bias), context)
    return result


def trapezoid(
    dt_raw: Like, a_raw: Like, lambda_raw: Like, dt_bias: Like | None = None, *, a_activation: str = "heavy_tail",
    a_floor: float = 1e-4, dt_min: float = 0.0, dt_max: float = float("inf"), context: Context | None = None,
) -> tuple[Array, Array, Array, Array, Array]:  # fmt: skip
    """Coefficients of the trapezoidal rule of Mamba-3: dt, da, gamma, carry and beta, all [b s h]."""
    operands = dict(dt_raw=dt_raw, a_raw=a_raw, lambda_raw=lambda_raw, dt_bias=dt_bias)
    dt, da, gamma, carry, beta = run(
        "trapezoid", operands, context, a_activation=a_activation, a_floor=a_floor, dt_min=dt_min, dt_max=dt_max
    )
    return dt, da, gamma, carry, beta


def trapezoid_scale(
    gamma: Like, carry: Like, *, seq_start: Like | None = None, context: Context | None = None
) -> Array:
    """scale_t = gamma_t + carry_{t+1}, where the carry after the last token of a sequence is 0."""
    result: Array = run("trapezoid_scale", dict(gamma=gamma, carry=carry, seq_start=seq_start), context)
    return result


def qk_norm(
    x: Like, gain: Like | None = None, bias: Like | None = None, *, heads: int, eps: float = 1e-5,
    context: Context | None = None,
) -> Array:  # fmt: skip
    """RMS norm of B or C [b s m g r] over r with gain [r], for `heads` heads, plus bias [h m r]: [b s m h r]."""
    result: Array = run("qk_norm", dict(x=x, gain=gain, bias=bias), context, heads=heads, eps=eps)
    return result


def rotation_angles(
    theta: Like, dt: Like, initial: Like | None = None, *, scale: float = 1.0, seq_start: Like | None = None,
    context: Context | None = None,
) -> tuple[Array, Array]:  # fmt: skip
    """Angles of the rotary state: phi_t = phi_{t-1} + dt scale pi tanh(theta), wrapped to [-pi, pi].

    theta [b s a], dt [b s h], initial [b h a]. Returns the angles [b s h a] and those after the last token [b h a].
    """
    operands = dict(theta=theta, dt=dt, initial=initial, seq_start=seq_start)
    angle, final = run("rotation_angles", operands, context, scale=scale)
    return angle, final


def rotate(x: Like, angle: Like, *, split_pairs: bool = False, context: Context | None = None) -> Array:
    """Rotates the first a pairs of each row of x [b s m h r] by angle [b s h a].

    Pairs are (2j, 2j + 1), with split_pairs (j, j + r/2).
    """
    result: Array = run("rotate", dict(x=x, angle=angle), context, split_pairs=split_pairs)
    return result


def quaternion_increments(raw: Like, dt: Like, *, scale: float = 1.0, context: Context | None = None) -> Array:
    """Unit quaternions [b s h j 4] of bounded generators raw [b s h j 3] and steps dt [b s h]."""
    result: Array = run("quaternion_increments", dict(raw=raw, dt=dt), context, scale=scale)
    return result


def quaternion_cumprod(
    q: Like, initial: Like | None = None, *, seq_start: Like | None = None, context: Context | None = None
) -> tuple[Array, Array]:
    """Cumulative products Q_t = q_t Q_{t-1} of quaternions [b s h j 4], and the last one [b h j 4]."""
    cumulative, final = run("quaternion_cumprod", dict(q=q, initial=initial, seq_start=seq_start), context)
    return cumulative, final


def quaternion_rotate(x: Like, cumulative: Like, *, context: Context | None = None) -> Array:
    """conj(Q) x for the first j blocks of four entries of each row of x [b s m h r]."""
    result: Array = run("quaternion_rotate", dict(x=x, cumulative=cumulative), context)
    return result
