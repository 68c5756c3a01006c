"""The package causal_conv1d: the short convolution on [b v s]."""

from __future__ import annotations

import torch

from krait._compat.checks import is_silu
from krait._compat.packed import from_seq_idx
from krait._compat import calls as K


def _window(states, k):
    """The inputs before the first token, [b v t] with t >= k-1, as the kernel's window [b v k]; its first entry is
    unused."""
    if states.shape[-1] >= k:
        return states[..., states.shape[-1] - k:]
    return torch.nn.functional.pad(states, (k - states.shape[-1], 0))


def causal_conv1d_fn(
    x,
    weight,
    bias=None,
    seq_idx=None,
    initial_states=None,
    return_final_states=False,
    final_states_out=None,
    activation=None,
):
    """Causal depthwise convolution: y_t = bias + sum_j weight[:, j] x_{t-(k-1)+j}, then SiLU if asked for.

    x [b v s], read without a copy if s or v is its fastest axis; weight [v k]; bias [v]; seq_idx [b s]: where it
    changes, the past is 0; initial_states [b v k-1]: inputs before the first token of each row. Returns y [b v s]; with
    return_final_states also the last k-1 inputs [b v k-1], written to final_states_out if given.
    """
    silu = is_silu("causal_conv1d_fn", activation)
    k = weight.shape[1]
    sequences = None if seq_idx is None else from_seq_idx(seq_idx)
    window = None if initial_states is None else _window(initial_states.to(x.dtype), k)
    if window is not None and sequences is not None:
        window = window[sequences.row] * sequences.first.to(window.dtype)[:, None, None]
    y, last = K.causal_conv(x.transpose(1, 2), weight.to(x.dtype), None if bias is None else bias.to(x.dtype), window,
                            None if sequences is None else sequences.rows, silu)
    y = y.transpose(1, 2)
    if not return_final_states:
        return y
    last = last if sequences is None else last[sequences.last]
    last = last[..., 1:].to(x.dtype)
    return y, last if final_states_out is None else final_states_out.copy_(last)


def _one_token(x, conv_state, weight, bias, silu):
    """One token whose state has k entries and is contiguous: the kernel updates it in place."""
    return K.conv_step(x, conv_state, weight, bias, silu)


def _several_tokens(x, past, weight, bias, silu):
    y, _ = K.causal_conv(x.transpose(1, 2), weight, bias, _window(past, weight.shape[1]), None, silu)
    return y.transpose(1, 2)


def _shifted(x, conv_state, weight, bias, silu):
    """x [b v s] behind conv_state, which moves by s."""
    k, length, ns = weight.shape[1], conv_state.shape[-1], x.shape[-1]
    if ns == 1 and length == k and conv_state.dtype == x.dtype and conv_state.is_contiguous():
        return _one_token(x[..., 0], conv_state, weight, bias, silu)[..., None]
    y = _several_tokens(x, conv_state.to(x.dtype), weight, bias, silu)
    moved = torch.cat([conv_state, x.to(conv_state.dtype)], dim=-1)[..., -length:] if ns < length else x[..., -length:]
    conv_state.copy_(moved)
    return y


def _ring(x, conv_state, weight, bias, silu, cache_seqlens):
    """conv_state is a ring buffer in which entry t % length holds input t; x begins at input cache_seqlens [b]."""
    k, length, ns = weight.shape[1], conv_state.shape[-1], x.shape[-1]
    at = cache_seqlens.long()[:, None] + torch.arange(-(k - 1), ns, device=x.device)
    at = (at % length)[:, None].expand(-1, x.shape[1], -1)
    y = _several_tokens(x, conv_state.gather(2, at[..., :k - 1]).to(x.dtype), weight, bias, silu)
    conv_state.scatter_(2, at[..., k - 1:], x.to(conv_state.dtype))
    return y


@torch.no_grad()
def causal_conv1d_update(x, conv_state, weight, bias=None, activation=None, cache_seqlens=None, conv_state_indices=None):
    """Tokens x [b v] or [b v s] behind the inputs in conv_state [b v t], t >= k-1, which is written. No gradients.

    cache_seqlens [b]: conv_state is a ring buffer and x is written from this entry on, modulo t. conv_state_indices [b]: the
    rows of conv_state that belong to the rows of x. Returns y in the shape of x.
    """
    silu = is_silu("causal_conv1d_update", activation)
    k = weight.shape[1]
    if conv_state.shape[-1] < k - 1:
        raise ValueError(
            f"causal_conv1d_update: conv_state holds {conv_state.shape[-1]} inputs, but weight has {k} taps and needs "
            f"at least {k - 1}"
        )
    weight, bias = weight.to(x.dtype), None if bias is None else bias.to(x.dtype)
    tokens = x[..., None] if x.dim() == 2 else x
    held = conv_state if conv_state_indices is None else conv_state[conv_state_indices.long()]
    if cache_seqlens is None:
        y = _shifted(tokens, held, weight, bias, silu)
    else:
        y = _ring(tokens, held, weight, bias, silu, cache_seqlens)
    if conv_state_indices is not None:
        conv_state[conv_state_indices.long()] = held
    return y[..., 0] if x.dim() == 2 else y


@torch.no_grad()
def causal_conv1d_varlen_states(x, cu_seqlens, state_len):
    """x [s v], packed rows: the last state_len inputs of each sequence of cu_seqlens [n+1], [n v state_len], 0 before
    its start."""
    start, end = cu_seqlens[:-1].long(), cu_seqlens[1:].long()
    at = end[:, None] + torch.arange(-state_len, 0, device=x.device)
    inside = at >= start[:, None]
    states = x[at.clamp(min=0)] * inside[..., None].to(x.dtype)
    return states.transpose(1, 2)
