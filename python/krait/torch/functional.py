"""The ops of torch.ops.krait as functions with defaults, and what is composed of them.

Axes are in the letters of docs/notation.md: b batch, s tokens, h heads, p channels of a head, g groups, r states, m rank,
i channels, v channels of the convolution, k taps, q sequences.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from krait import _core
from krait.torch.kernels import OptionalTensor
from krait.torch.ops import NAMESPACE as _ops

Tensor = torch.Tensor


def sequences(batch: int, length: int, *, seq_start: OptionalTensor = None, cu_seqlens: OptionalTensor = None,
              seq_idx: OptionalTensor = None, pin: bool = False) -> OptionalTensor:
    """The list that ops take for packed rows: int64 [q 3] on the host, row, start and end of each sequence.

    seq_start [b s]: nonzero where a sequence starts. seq_idx [b s]: a number for each sequence; a change starts one.
    cu_seqlens [q+1]: limits of the sequences of one row. Give one of them; without any the result is None. pin: in pinned
    memory, where kernels of a GPU read it; otherwise each op copies it there.

    >>> sequences(1, 5, cu_seqlens=torch.tensor([0, 2, 5]))
    tensor([[0, 0, 2],
            [0, 2, 5]])
    """
    if sum(x is not None for x in (seq_start, cu_seqlens, seq_idx)) > 1:
        raise _core.ArgumentError("sequences: give one of seq_start, cu_seqlens and seq_idx")
    if cu_seqlens is not None:
        limits = cu_seqlens.to("cpu", torch.int64)
        if batch != 1 or limits.dim() != 1 or limits[0] != 0 or limits[-1] != length or (limits.diff() < 1).any():
            raise _core.ArgumentError(
                f"sequences: cu_seqlens must rise from 0 to the {length} tokens of a batch of 1, but the batch is {batch} and "
                f"cu_seqlens {limits.tolist()}")
        return _pinned(torch.stack([torch.zeros_like(limits[1:]), limits[:-1], limits[1:]], 1), pin)
    given = seq_start if seq_start is not None else seq_idx
    if given is None:
        return None
    if tuple(given.shape) != (batch, length):
        name = "seq_start" if seq_start is not None else "seq_idx"
        raise _core.ShapeError(f"sequences: {name} has shape {list(given.shape)}, but must be [{batch}, {length}]")
    own = given.detach().to("cpu")
    starts = own != 0 if seq_start is not None else F.pad(own[:, 1:] != own[:, :-1], (1, 0))
    starts[:, 0] = True
    rows, first = starts.nonzero(as_tuple=True)
    ends = torch.cat([first[1:], first.new_tensor([length])])
    ends[torch.cat([rows[1:], rows.new_tensor([-1])]) != rows] = length
    return _pinned(torch.stack([rows, first, ends], 1), pin)


def _pinned(x: Tensor, pin: bool) -> Tensor:
    return x.pin_memory() if pin else x


def linear(x: Tensor, weight: Tensor, bias: OptionalTensor = None) -> Tensor:
    """x weight^T + bias, x [.. i], weight [o i]. On the CPU by the library's products, elsewhere by torch's.

    On a GPU both end in cuBLAS. torch's own products are used for types other than f32 and f64, and under autocast, too.
    """
    takes = x.device.type == "cpu" and x.dtype is weight.dtype and x.dtype in (torch.float32, torch.float64)
    if not takes or x.dim() < 2 or torch.is_autocast_enabled("cpu"):
        return F.linear(x, weight, bias)
    y: Tensor = _ops.linear(x, weight, bias, None)
    return y


def softplus_dt(dt: Tensor, bias: OptionalTensor = None, limit: tuple[float, float] = (0.0, math.inf)) -> Tensor:
    """Step sizes: softplus(dt + bias), between the limits."""
    steps: Tensor = _ops.softplus_dt(dt, bias, *limit)
    return steps


def ssd(x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, d: OptionalTensor = None, *,
        initial: OptionalTensor = None, sequences: OptionalTensor = None, chunk_len: int = 0) -> tuple[Tensor, Tensor]:
    """The SSD core of Mamba-2: H_t = exp(dt_t a) H_{t-1} + dt_t x_t (outer) b_t, y_t = H_t c_t + d x_t.

    x [b s h p], dt [b s h] after softplus, a [h] below 0, b and c [b s g r], d [h], initial [q h p r]. Returns y and the
    state after each sequence. chunk_len affects speed and rounding only; 0: chosen by sizes.
    """
    y, final = _ops.ssd(x, dt * a, dt, b, c, d, initial, sequences, chunk_len)
    return y, final


def selective_scan(x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, d: OptionalTensor = None,
                   z: OptionalTensor = None, *, initial: OptionalTensor = None,
                   sequences: OptionalTensor = None) -> tuple[Tensor, Tensor]:
    """The scan of Mamba-1: x, dt, z [b s i], a [i r] below 0, b and c [b s g r], d [i], initial [q i r]."""
    y, final = _ops.selective_scan(x, dt, a, b, c, d, z, initial, sequences)
    return y, final


def causal_conv(x: Tensor, weight: Tensor, bias: OptionalTensor = None, *, window: OptionalTensor = None,
                sequences: OptionalTensor = None, silu: bool = True) -> tuple[Tensor, Tensor]:
    """Causal depthwise convolution: x [b s v], weight [v k], window [q v k], the k inputs before. Returns y and the window
    after each sequence."""
    y, window_out = _ops.causal_conv(x, weight, bias, window, sequences, silu)
    return y, window_out


def rms_norm(x: Tensor, gain: OptionalTensor = None, *, eps: float = 1e-5, groups: int = 1) -> Tensor:
    """x divided by its root mean square over each of the groups of the last axis, times gain."""
    y: Tensor = _ops.gated_norm(x, None, gain, None, groups, eps, False)[0]
    return y


def add_rms_norm(x: Tensor, residual: OptionalTensor, gain: OptionalTensor = None, *,
                 eps: float = 1e-5) -> tuple[Tensor, Tensor]:
    """rms_norm(x + residual) in the type of x, and that sum in f32 (f64 for f64)."""
    y, total, _ = _ops.add_rms_norm(x, residual, gain, None, eps)
    return y, total


def gated_norm(x: Tensor, z: Tensor, gain: OptionalTensor = None, *, eps: float = 1e-5, groups: int = 1,
               norm_before_gate: bool = False) -> Tensor:
    """rms_norm(x silu(z)), or with norm_before_gate rms_norm(x) silu(z)."""
    y: Tensor = _ops.gated_norm(x, z, gain, None, groups, eps, norm_before_gate)[0]
    return y


def gate(x: Tensor, z: Tensor) -> Tensor:
    """x silu(z)."""
    y: Tensor = _ops.gate(x, z, None)
    return y


def qk_norm(x: Tensor, gain: OptionalTensor, bias: OptionalTensor, n_heads: int, *, eps: float = 1e-5) -> Tensor:
    """B or C of Mamba-3 before rotation: RMS norm over r, repeated for the heads of each group, plus a bias per head.

    x [b s m g r], gain [r], bias [h m r]; returns [b s m h r].
    """
    y: Tensor = _ops.qk_norm(x, gain, bias, n_heads, eps)
    return y


def trapezoid(dt_raw: Tensor, dt_bias: OptionalTensor, a_raw: Tensor, lambda_raw: Tensor, *, a_floor: float = 1e-4,
              dt_limit: tuple[float, float] = (0.0, math.inf),
              softplus: bool = False) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Coefficients of Mamba-3: dt, da, gamma, carry and beta [b s h]."""
    dt, da, gamma, carry, beta = _ops.trapezoid(dt_raw, dt_bias, a_raw, lambda_raw, None, a_floor, *dt_limit, softplus)
    return dt, da, gamma, carry, beta


def trapezoid_scale(gamma: Tensor, carry: Tensor, sequences: OptionalTensor = None) -> Tensor:
    """scale_t = gamma_t + carry_{t+1}; nothing is carried beyond the end of a sequence."""
    following = F.pad(carry[:, 1:], (0, 0, 0, 1))
    if sequences is not None:
        keep = torch.ones(carry.shape[:2], dtype=carry.dtype)
        keep[sequences[:, 0], sequences[:, 2] - 1] = 0
        following = following * keep.to(carry.device, non_blocking=True)[..., None]
    return gamma + following


def rotation_angles(theta: Tensor, dt: Tensor, *, initial: OptionalTensor = None, range: float = 1.0, chunk_len: int = 0,
                    sequences: OptionalTensor = None) -> tuple[Tensor, Tensor]:
    """Angles that accumulate along sequences, in [-pi, pi]: theta [b s a], dt [b s h] -> [b s h a] and the last ones."""
    angle, final = _ops.angles(theta, dt, initial, sequences, range, chunk_len)
    return angle, final


def rotate(x: Tensor, angle: Tensor, bias: OptionalTensor = None, *, split_pairs: bool = False) -> Tensor:
    """Rotary embedding: x [b s m g r] plus bias [h m r], repeated for the heads of its group, by angle [b s h a]."""
    y: Tensor = _ops.rotate(x, bias, angle, None, split_pairs)
    return y


def quaternion_increments(raw: Tensor, dt: Tensor, *, range: float = 1.0) -> Tensor:
    """Unit quaternions of bounded generators: raw [b s h j 3], dt [b s h] -> [b s h j 4]."""
    q: Tensor = _ops.quaternion_exp(raw, dt, None, range)
    return q


def quaternion_cumprod(q: Tensor, *, initial: OptionalTensor = None, chunk_len: int = 0,
                       sequences: OptionalTensor = None) -> tuple[Tensor, Tensor]:
    """Cumulative products along sequences [b s h j 4], and the last ones [q h j 4]."""
    cum, final = _ops.quaternion_scan(q, initial, sequences, chunk_len)
    return cum, final


def quaternion_rotate(x: Tensor, cum: Tensor) -> Tensor:
    """The first j blocks of four entries of x [b s m h r] rotated by the conjugates of cum [b s h j 4]."""
    y: Tensor = _ops.quaternion_rotate(x, cum, None)
    return y


def mamba3_ssd(v: Tensor, b: Tensor, c: Tensor, da: Tensor, scale: Tensor, gamma: Tensor, d: OptionalTensor = None, *,
               initial: OptionalTensor = None, carry: OptionalTensor = None,
               before: tuple[Tensor, Tensor, Tensor] | None = None, sequences: OptionalTensor = None,
               chunk_len: int = 0) -> tuple[Tensor, Tensor]:
    """The SSD core of Mamba-3, single pathway: v [b s m h p], b and c [b s m g r], da, scale and gamma [b s h].

    before: carry of the first token [q h], v [q m h p] and b [q m h r] of the token before it. carry: the operand of
    trapezoid_scale, for the same rounding whatever the split of a sequence.
    """
    y, final = _ops.ssd3_single(v, b, c, da, scale, gamma, d, initial, carry, *(before or (None, None, None)), sequences,
                                chunk_len)
    return y, final


def mamba3_ssd_double(v: Tensor, b: Tensor, c: Tensor, da: Tensor, d: OptionalTensor = None, *,
                      initial: OptionalTensor = None, sequences: OptionalTensor = None,
                      chunk_len: int = 0) -> tuple[Tensor, Tensor]:
    """One pass of Mamba-3's double pathway: H_t = exp(da_t) H_{t-1} + sum_m v_t[m] (outer) b_t[m], y = H c + d v."""
    y, final = _ops.ssd3_double(v, b, c, da, d, initial, sequences, chunk_len)
    return y, final
