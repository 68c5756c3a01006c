"""mamba_ssm.ops.triton.ssd_combined: the SSD of Mamba-2 with what stands around it."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from krait._compat.causal_conv import causal_conv1d_fn
from krait._compat.checks import is_silu, refuse_state_dtype
from krait._compat.packed import from_cu_seqlens, from_seq_idx
from krait._compat import calls as K

_NO_LIMIT = (0.0, float("inf"))


def clamped_steps(dt, dt_bias, dt_softplus, dt_limit):
    """dt as the recurrence has it: bias, softplus, limits, in f32 or f64."""
    if dt.dtype in (torch.bfloat16, torch.float16):
        dt = dt.float()
    if dt_bias is not None:
        dt = dt + (dt_bias if dt_bias.dtype is dt.dtype else dt_bias.to(dt.dtype))
    if dt_softplus:
        dt = F.softplus(dt)
    return dt if tuple(dt_limit) == _NO_LIMIT else dt.clamp(*dt_limit)


def _first_states(initial_states, seq_idx, sequences):
    """Initial states by sequence, [q h p r]: of those that begin a row with the number 0, the official rule; 0 of the
    others."""
    if sequences is None:
        return initial_states
    row = sequences.row
    used = sequences.first if seq_idx is None else sequences.first & (seq_idx[row, 0] == 0)
    return initial_states[row] * used.to(initial_states.dtype)[:, None, None, None]


def _scan(x, dt, A, B, C, D, initial_states, seq_idx, sequences):
    """The recurrence without gate; dt as it is used. Returns y [b s h p] and the final state of each sequence."""
    wide = dt.dtype
    A = A.to(wide)
    w = dt if seq_idx is None else dt * (seq_idx >= 0).to(wide)[..., None]
    initial = None if initial_states is None else _first_states(initial_states.to(wide), seq_idx, sequences)
    by_head = D if D is None or D.dim() == 1 else None
    y, final = K.ssd(x, dt * A, w, B.to(x.dtype), C.to(x.dtype), None if by_head is None else by_head.to(wide), initial,
                     None if sequences is None else sequences.rows)
    if D is not None and by_head is None:
        y = (y + x * D).to(x.dtype)
    return y, final


def _varlen_states(x, dt, A, B, C, sequences, final, cu_seqlens):
    """The state [n h p r] at the end of each sequence of cu_seqlens; of an empty one 0."""
    if x.shape[0] != 1:
        raise ValueError(f"mamba_chunk_scan_combined: cu_seqlens needs one row, but x has {x.shape[0]}")
    cut = from_cu_seqlens(cu_seqlens, x.shape[1])
    if sequences is None or not torch.equal(sequences.rows, cut.rows):
        final = _scan(x, dt, A, B, C, None, None, None, cut)[1]
    start, end = cu_seqlens[:-1].long(), cu_seqlens[1:].long()
    states = final.new_zeros(start.numel(), *final.shape[1:])
    states[end > start] = final[torch.isin(cut.rows[:, 1].to(start.device), start[end > start])]
    return states.detach()


def mamba_chunk_scan_combined(x, dt, A, B, C, chunk_size, D=None, z=None, dt_bias=None, initial_states=None, seq_idx=None,
                              cu_seqlens=None, dt_softplus=False, dt_limit=(0.0, float("inf")), return_final_states=False,
                              return_varlen_states=False, state_dtype=None):
    """The SSD of Mamba-2: H_t = exp(dt A) H_{t-1} + dt x_t (outer) B_t, y_t = H_t C_t + D x_t, times silu(z) if given.

    x, z [b s h p]; dt [b s h]; A, dt_bias [h]; B, C [b s g r]; D [h] or [h p]; initial_states [b h p r]; seq_idx [b s].
    chunk_size has no effect: the kernels choose. Where seq_idx changes, the state is 0; initial states reach tokens with the
    number 0; tokens with a negative number are padding. cu_seqlens [n+1], of one row, says of which sequences
    return_varlen_states returns the last states [n h p r], without gradients; it isolates nothing by itself. Returns y
    in the type of x, then the final states [b h p r] with return_final_states, then those of sequences.
    """
    refuse_state_dtype("mamba_chunk_scan_combined", state_dtype)
    if return_varlen_states and cu_seqlens is None:
        raise ValueError("mamba_chunk_scan_combined: return_varlen_states needs cu_seqlens")
    sequences = None if seq_idx is None else from_seq_idx(seq_idx)
    steps = clamped_steps(dt, dt_bias, dt_softplus, dt_limit)
    y, final = _scan(x, steps, A, B, C, D, initial_states, seq_idx, sequences)
    if z is not None:
        y = (y * F.silu(z)).to(x.dtype)
    if not (return_final_states or return_varlen_states):
        return y
    results = [y]
    if return_final_states:
        results.append(final if sequences is None else final[sequences.last])
    if return_varlen_states:
        results.append(_varlen_states(x, steps, A, B, C, sequences, final, cu_seqlens))
    return tuple(results)


def mamba_chunk_scan(x, dt, A, B, C, chunk_size, D=None, z=None, dt_bias=None, dt_softplus=False):
    """mamba_chunk_scan_combined without its further operands."""
    return mamba_chunk_scan_combined(x, dt, A, B, C, chunk_size, D, z, dt_bias, dt_softplus=dt_softplus)


def _is_one_op(D, seq_idx, activation):
    """Whether the mixer op computes this: it has SiLU, one D a head, and no padding inside rows."""
    return seq_idx is None and activation is not None and D.dim() == 1


def _fused(
    zxbcdt, conv_weight, conv_bias, dt_bias, A, D, initial_states, gain, np, ngroups, dt_limit, eps, norm_before_gate
):
    return K.mamba2_mixer(zxbcdt, conv_weight, conv_bias, dt_bias, A, D, gain, initial_states, np, ngroups, dt_limit,
                          1e-5 if gain is None else eps, norm_before_gate and gain is not None)


def _composed(
    zxbcdt,
    conv_weight,
    conv_bias,
    dt_bias,
    A,
    D,
    initial_states,
    seq_idx,
    dt_limit,
    activation,
    gain,
    eps,
    np,
    ngroups,
    norm_before_gate,
    n0,
):
    nh, nv = dt_bias.shape[0], conv_weight.shape[0]
    ni = nh * np
    z0, x0, z, xBC, dt = zxbcdt.split([n0, n0, ni, nv, nh], dim=-1)
    xBC = causal_conv1d_fn(xBC.transpose(1, 2), conv_weight, conv_bias, seq_idx, activation=activation).transpose(1, 2)
    x, B, C = xBC.split([ni, (nv - ni) // 2, (nv - ni) // 2], dim=-1)
    y, final = mamba_chunk_scan_combined(
        x.unflatten(-1, (nh, np)), dt, A, B.unflatten(-1, (ngroups, -1)), C.unflatten(-1, (ngroups, -1)), 0, D,
        z.unflatten(-1, (nh, np)) if gain is None else None, dt_bias, initial_states, seq_idx, None, True, dt_limit, True)
    y = y.flatten(2)
    if gain is not None:
        y = K.gated_norm(y, z, gain.to(y.dtype), eps, ngroups, norm_before_gate)
    return torch.cat([F.silu(z0) * x0, y], dim=-1) if n0 else y, final


def mamba_split_conv1d_scan_combined(
    zxbcdt,
    conv1d_weight,
    conv1d_bias,
    dt_bias,
    A,
    D,
    chunk_size,
    initial_states=None,
    seq_idx=None,
    dt_limit=(0.0, float("inf")),
    return_final_states=False,
    activation="silu",
    rmsnorm_weight=None,
    rmsnorm_eps=1e-6,
    outproj_weight=None,
    outproj_bias=None,
    headdim=None,
    ngroups=1,
    norm_before_gate=True,
    state_dtype=None,
):
    """Mamba-2 between in_proj and the end: split, convolution, SSD, gated norm, out_proj.

    zxbcdt [b s 2n + 2i + 2gr + h], in the order z0, x0 (n each, often 0), z, x (i), B, C, dt; conv1d_weight [v k];
    dt_bias, A [h]; D [h], with headdim, or [h p]; rmsnorm_weight [i]; outproj_weight [d i+n]. Without rmsnorm_weight the
    gate is y silu(z); without outproj_weight the result is [b s i+n]. Returns it, or with return_final_states also [b h
    p r].
    """
    refuse_state_dtype("mamba_split_conv1d_scan_combined", state_dtype)
    is_silu("mamba_split_conv1d_scan_combined", activation)
    if D.dim() == 1 and headdim is None:
        raise ValueError("mamba_split_conv1d_scan_combined: D has one axis, so headdim must be given")
    nh, nv = dt_bias.shape[0], conv1d_weight.shape[0]
    np = D.shape[1] if D.dim() == 2 else headdim
    ni = nh * np
    n_mlp = zxbcdt.shape[-1] - ni - nv - nh
    if n_mlp < 0 or n_mlp % 2 or (nv - ni) % (2 * ngroups):
        raise ValueError(
            f"mamba_split_conv1d_scan_combined: zxbcdt has {zxbcdt.shape[-1]} columns, but {nh} heads of {np} channels and "
            f"a convolution of {nv} channels in {ngroups} groups need {ni + nv + nh}, or more by an even number"
        )
    if n_mlp == 0 and _is_one_op(D, seq_idx, activation):
        y, final = _fused(zxbcdt, conv1d_weight, conv1d_bias, dt_bias, A, D, initial_states, rmsnorm_weight, np, ngroups,
                          dt_limit, rmsnorm_eps, norm_before_gate)
    else:
        y, final = _composed(zxbcdt, conv1d_weight, conv1d_bias, dt_bias, A, D, initial_states, seq_idx, dt_limit,
                             activation, rmsnorm_weight, rmsnorm_eps, np, ngroups, norm_before_gate, n_mlp // 2)
    if outproj_weight is not None:
        y = K.linear(y, outproj_weight, outproj_bias)
    return (y, final) if return_final_states else y
