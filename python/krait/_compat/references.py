"""Plain torch formulations of the official functions, token by token, without kernels: the *_ref names, and what tests
compare with.

They compute in f32, or in f64 if an operand is f64, and return results in the type of the first operand.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F


def _wide(*tensors):
    """The tensors in f64 if one of them is, else in f32; None stays None."""
    dtype = torch.float64 if any(t is not None and t.dtype == torch.float64 for t in tensors) else torch.float32
    return [None if t is None else t.to(dtype) for t in tensors]


def _steps(dt, dt_bias, dt_softplus, dt_limit=(0.0, float("inf"))):
    """Step sizes from their raw values: bias, softplus, limits. The bias ends in the axes of dt."""
    if dt_bias is not None:
        dt = dt + dt_bias
    if dt_softplus:
        dt = F.softplus(dt)
    return dt if tuple(dt_limit) == (0.0, float("inf")) else dt.clamp(*dt_limit)


def _activate(y, activation):
    if activation not in (None, "silu", "swish"):
        raise NotImplementedError(f"activation is {activation!r}, but must be None, 'silu' or 'swish'")
    return y if activation is None else F.silu(y)


def selective_scan_ref(u, delta, A, B, C, D=None, z=None, delta_bias=None, delta_softplus=False, return_last_state=False):
    """u, delta, z [b i s], A [i r], B and C [i r], [b r s] or [b g r s]. Returns y [b i s], or (y, last state [b i r])."""
    u_, delta, A, B, C, D, z, delta_bias = _wide(u, delta, A, B, C, D, z, delta_bias)
    nb, ni, ns = u.shape

    def per_channel(m):  # [b i r s]
        if m.dim() == 2:
            return m[None, :, :, None].expand(nb, -1, -1, ns)
        m = m[:, None] if m.dim() == 3 else m
        return m.repeat_interleave(ni // m.shape[1], dim=1)

    B, C = per_channel(B), per_channel(C)
    dt = _steps(delta, None if delta_bias is None else delta_bias[:, None], delta_softplus)
    state = torch.zeros(nb, ni, A.shape[1], dtype=u_.dtype, device=u.device)
    ys = []
    for t in range(ns):
        step = dt[:, :, t, None]
        state = torch.exp(step * A) * state + step * B[..., t] * u_[:, :, t, None]
        ys.append((state * C[..., t]).sum(-1))
    y = torch.stack(ys, dim=-1)
    if D is not None:
        y = y + D[:, None] * u_
    if z is not None:
        y = y * F.silu(z)
    y = y.to(u.dtype)
    return (y, state) if return_last_state else y


def ssd_states(x, dt, A, B, C, initial_states=None, seq_idx=None):
    """The recurrence of Mamba-2: x [b s h p], dt [b s h] after softplus, A [h], B and C [b s g r].

    Returns y [b s h p] and the state [b h p r] after each token, as a list. Where seq_idx [b s] changes, the state is 0.
    """
    heads = x.shape[2] // B.shape[2]
    B, C = B.repeat_interleave(heads, dim=2), C.repeat_interleave(heads, dim=2)
    state = torch.zeros(x.shape[0], *x.shape[2:], B.shape[3], dtype=x.dtype, device=x.device)
    if initial_states is not None:
        state = state + initial_states
    before = torch.zeros_like(seq_idx[:, 0]) if seq_idx is not None else None
    ys, states = [], []
    for t in range(x.shape[1]):
        if seq_idx is not None:
            state = state * (seq_idx[:, t] == before)[:, None, None, None]
            before = seq_idx[:, t]
        decay = torch.exp(dt[:, t] * A)[..., None, None]
        state = decay * state + (dt[:, t, :, None] * x[:, t])[..., None] * B[:, t, :, None, :]
        ys.append((state * C[:, t, :, None, :]).sum(-1))
        states.append(state)
    return torch.stack(ys, dim=1), states


def ssd_chunk_scan_combined_ref(x, dt, A, B, C, chunk_size, D=None, z=None, dt_bias=None, dt_softplus=False):
    """x [b s h p], dt [b s h], A [h], B and C [b s g r], D [h] or [h p], z [b s h p]. chunk_size does not change the
    result."""
    return _combined(x, dt, A, B, C, D, z, dt_bias, dt_softplus)


def ssd_selective_scan(x, dt, A, B, C, D=None, z=None, dt_bias=None, dt_softplus=False, dt_limit=(0.0, float("inf"))):
    """As ssd_chunk_scan_combined_ref; dt, A and dt_bias may also have an axis p: [b s h p], [h p r], [h p]."""
    if dt.dim() == 4 or A.dim() > 1 or (dt_bias is not None and dt_bias.dim() == 2):
        return _untied(x, dt, A, B, C, D, z, dt_bias, dt_softplus, dt_limit)
    return _combined(x, dt, A, B, C, D, z, dt_bias, dt_softplus, dt_limit)


def _combined(x, dt, A, B, C, D, z, dt_bias, dt_softplus, dt_limit=(0.0, float("inf"))):
    x_, dt, A, B, C, D, z, dt_bias = _wide(x, dt, A, B, C, D, z, dt_bias)
    y, _ = ssd_states(x_, _steps(dt, dt_bias, dt_softplus, dt_limit), A, B, C)
    if D is not None:
        y = y + (D[:, None] if D.dim() == 1 else D) * x_
    return (y if z is None else y * F.silu(z)).to(x.dtype)


def _untied(x, dt, A, B, C, D, z, dt_bias, dt_softplus, dt_limit):
    """A scan whose decay differs between the channels of a head: the selective scan over channels (h p)."""
    nb, ns, nh, np = x.shape
    nr = B.shape[-1]

    def channels(m, last=()):  # [h], [h p] or [h p r] to [h p *last]
        while m.dim() < 2 + len(last):
            m = m[..., None]
        return m.expand(nh, np, *last).reshape(nh * np, *last)

    dt = (dt[..., None] if dt.dim() == 3 else dt).expand(nb, ns, nh, np)
    dt = _steps(dt, None if dt_bias is None else channels(dt_bias).view(nh, np), dt_softplus, dt_limit)
    y = selective_scan_ref(
        x.reshape(nb, ns, -1).transpose(1, 2), dt.reshape(nb, ns, -1).transpose(1, 2), channels(A, (nr,)),
        B.permute(0, 2, 3, 1), C.permute(0, 2, 3, 1), None if D is None else channels(D),
        None if z is None else z.reshape(nb, ns, -1).transpose(1, 2))
    return y.transpose(1, 2).reshape(nb, ns, nh, np)


def selective_state_update_ref(state, x, dt, A, B, C, D=None, z=None, dt_bias=None, dt_softplus=False):
    """One token. state [b h p r], x, dt, z [b h p], A [h p r], B and C [b g r], D, dt_bias [h p]; or all of them without h
    and g. Writes state."""
    heads = state.dim() == 4
    x_, dt, A, B, C, D, z, dt_bias = _wide(x, dt, A, B, C, D, z, dt_bias)
    if not heads:
        x_, dt, A, B, C, D, z, dt_bias = [
            None if m is None else m.unsqueeze(axis)
            for m, axis in zip((x_, dt, A, B, C, D, z, dt_bias), (1, 1, 0, 1, 1, 0, 1, 0))
        ]
    dt = _steps(dt, dt_bias, dt_softplus)
    B, C = (m.repeat_interleave(x_.shape[1] // m.shape[1], dim=1)[:, :, None, :] for m in (B, C))
    held = state if heads else state[:, None]
    updated = torch.exp(dt[..., None] * A) * held.to(x_.dtype) + (dt * x_)[..., None] * B
    held.copy_(updated)
    y = (held.to(C.dtype) * C).sum(-1)
    if D is not None:
        y = y + D * x_
    if z is not None:
        y = y * F.silu(z)
    return (y if heads else y[:, 0]).to(x.dtype)


def causal_conv1d_ref(x, weight, bias=None, initial_states=None, return_final_states=False, final_states_out=None,
                      activation=None):
    """x [b v s], weight [v k], states [b v k-1]: the inputs before the first token. Returns y, or (y, last k-1 inputs)."""
    k = weight.shape[1]
    past = x.new_zeros(*x.shape[:2], k - 1) if initial_states is None else initial_states.to(x.dtype)
    inputs = torch.cat([past, x], dim=-1)
    x_, weight, bias = _wide(inputs, weight, bias)
    y = sum(weight[:, j, None] * x_[..., j:j + x.shape[2]] for j in range(k))
    y = _activate(y if bias is None else y + bias[:, None], activation).to(x.dtype)
    if not return_final_states:
        return y
    final = inputs[..., inputs.shape[2] - (k - 1):]
    if final_states_out is not None:
        final = final_states_out.copy_(final)
    return y, final


def causal_conv1d_update_ref(x, conv_state, weight, bias=None, activation=None, cache_seqlens=None):
    """x [b v] or [b v s] behind conv_state [b v t], which is written; with cache_seqlens [b] it is a ring buffer."""
    tokens = x[..., None] if x.dim() == 2 else x
    k, ns, length = weight.shape[1], tokens.shape[2], conv_state.shape[2]
    if cache_seqlens is None:
        past = conv_state[..., length - (k - 1):]
        y = causal_conv1d_ref(tokens, weight, bias, past, activation=activation)
        conv_state.copy_(torch.cat([conv_state, tokens.to(conv_state.dtype)], dim=-1)[..., -length:])
    else:
        at = cache_seqlens.long()[:, None] + torch.arange(-(k - 1), ns, device=x.device)
        at = (at % length)[:, None].expand(-1, x.shape[1], -1)
        y = causal_conv1d_ref(tokens, weight, bias, conv_state.gather(2, at[..., :k - 1]), activation=activation)
        conv_state.scatter_(2, at[..., k - 1:], tokens.to(conv_state.dtype))
    return y[..., 0] if x.dim() == 2 else y


def causal_conv1d_varlen_states_ref(x, cu_seqlens, state_len):
    """x [s v], rows packed: the last state_len inputs of each sequence, [q v state_len], zeros before its start."""
    states = x.new_zeros(cu_seqlens.numel() - 1, x.shape[1], state_len)
    for q in range(states.shape[0]):
        end = int(cu_seqlens[q + 1])
        start = max(int(cu_seqlens[q]), end - state_len)
        if end > start:
            states[q, :, state_len - (end - start):] = x[start:end].T
    return states


def _grouped(x, group_size):
    return x if group_size is None else x.unflatten(-1, (-1, group_size))


def rms_norm_gated_ref(x, weight, bias, z=None, eps=1e-6, group_size=None, norm_before_gate=True, upcast=True):
    """y = x / rms(x) weight + bias, times silu(z) before or after the norm. Works on groups of group_size channels."""
    x_, weight, bias, z = _wide(x, weight, bias, z) if upcast else (x, weight, bias, z)
    if z is not None and not norm_before_gate:
        x_ = x_ * F.silu(z)
    groups = _grouped(x_, group_size)
    y = (groups * torch.rsqrt(groups.square().mean(-1, keepdim=True) + eps)).reshape(x_.shape) * weight
    y = y if bias is None else y + bias
    if z is not None and norm_before_gate:
        y = y * F.silu(z)
    return y.to(x.dtype)


def _residual_sum(x, residual, x1, rowscale, dropout_p, dropout_mask, dropout_mask1, upcast):
    """What is normalised: rowscale x, with dropout, + x1, with dropout, + residual."""

    def drop(value, mask):
        if dropout_p <= 0.0:
            return value
        return F.dropout(value, dropout_p) if mask is None else value.masked_fill(~mask, 0.0) / (1.0 - dropout_p)

    if rowscale is not None:
        x = x * rowscale[..., None]
    if upcast:
        x, x1, residual = _wide(x, x1, residual)
    x = drop(x, dropout_mask)
    if x1 is not None:
        x = x + drop(x1, dropout_mask1)
    return x if residual is None else (x + residual).to(x.dtype)


def _norm_ref(norm, x, weight, bias, residual, x1, weight1, bias1, prenorm, upcast, *sum_options):
    dtype = x.dtype
    if upcast:
        weight, bias, weight1, bias1 = (None if w is None else w.to(torch.promote_types(w.dtype, torch.float32))
                                        for w in (weight, bias, weight1, bias1))
    total = _residual_sum(x, residual, x1, *sum_options, upcast)
    wide = total.to(weight.dtype)
    results = [norm(wide, weight, bias).to(dtype)]
    if weight1 is not None:
        results.append(norm(wide, weight1, bias1).to(dtype))
    if prenorm:
        results.append(total)
    return tuple(results) if len(results) > 1 else results[0]


def layer_norm_ref(x, weight, bias, residual=None, x1=None, weight1=None, bias1=None, eps=1e-6, dropout_p=0.0, rowscale=None,
                   prenorm=False, dropout_mask=None, dropout_mask1=None, upcast=False):
    """Layer norm of rowscale x + x1 + residual. Returns y, and then y of weight1, and the sum with prenorm."""
    return _norm_ref(lambda v, w, b: F.layer_norm(v, v.shape[-1:], w, b, eps), x, weight, bias, residual, x1, weight1, bias1,
                     prenorm, upcast, rowscale, dropout_p, dropout_mask, dropout_mask1)


def rms_norm_ref(x, weight, bias, residual=None, x1=None, weight1=None, bias1=None, eps=1e-6, dropout_p=0.0, rowscale=None,
                 prenorm=False, dropout_mask=None, dropout_mask1=None, upcast=False):
    """The same with an RMS norm."""

    def norm(v, w, b):
        y = v * torch.rsqrt(v.square().mean(-1, keepdim=True) + eps) * w
        return y if b is None else y + b

    return _norm_ref(norm, x, weight, bias, residual, x1, weight1, bias1, prenorm, upcast, rowscale, dropout_p, dropout_mask,
                     dropout_mask1)


def mamba_inner_ref(xz, conv1d_weight, conv1d_bias, x_proj_weight, delta_proj_weight, out_proj_weight, out_proj_bias, A,
                    B=None, C=None, D=None, delta_bias=None, B_proj_bias=None, C_proj_bias=None, delta_softplus=True):
    """Mamba-1 between in_proj and the end: xz [b 2i s]. Returns [b s d]."""
    x, z = xz.chunk(2, dim=1)
    x = causal_conv1d_ref(x, conv1d_weight.squeeze(1), conv1d_bias, activation="silu")
    rank, nr = delta_proj_weight.shape[1], A.shape[1]
    parts = F.linear(x.transpose(1, 2), x_proj_weight)
    low, b, c = parts[..., :rank], parts[..., rank:rank + nr], parts[..., -nr:]
    if B is None:
        B = (b if B_proj_bias is None else b + B_proj_bias).transpose(1, 2)
    if C is None:
        C = (c if C_proj_bias is None else c + C_proj_bias).transpose(1, 2)
    delta = F.linear(low, delta_proj_weight).transpose(1, 2)
    y = selective_scan_ref(x, delta, A, B, C, D, z=z, delta_bias=delta_bias, delta_softplus=delta_softplus)
    return F.linear(y.transpose(1, 2), out_proj_weight, out_proj_bias)


def mamba_conv1d_scan_ref(
    xBC,
    conv1d_weight,
    conv1d_bias,
    dt,
    A,
    chunk_size,
    D=None,
    z=None,
    dt_bias=None,
    dt_softplus=False,
    dt_limit=(0.0, float("inf")),
    activation="silu",
    headdim=None,
    ngroups=1,
):
    """The convolution and scan of Mamba-2: xBC [b s v], dt [b s h], z [b s h p]. Returns [b s h p]."""
    if headdim is None and z is None and (D is None or D.dim() == 1):
        raise ValueError("mamba_conv1d_scan_ref: headdim is needed where neither z nor D says it")
    np = headdim if headdim is not None else (z.shape[-1] if z is not None else D.shape[-1])
    ni = dt.shape[-1] * np
    xBC = causal_conv1d_ref(xBC.transpose(1, 2), conv1d_weight, conv1d_bias, activation=activation).transpose(1, 2)
    x, B, C = xBC.split([ni, (xBC.shape[-1] - ni) // 2, (xBC.shape[-1] - ni) // 2], dim=-1)
    return ssd_selective_scan(
        x.unflatten(-1, (-1, np)),
        dt,
        A,
        B.unflatten(-1, (ngroups, -1)),
        C.unflatten(-1, (ngroups, -1)),
        D,
        z,
        dt_bias,
        dt_softplus,
        dt_limit,
    )


def mamba_split_conv1d_scan_ref(
    zxbcdt,
    conv1d_weight,
    conv1d_bias,
    dt_bias,
    A,
    D,
    chunk_size,
    dt_limit=(0.0, float("inf")),
    activation="silu",
    rmsnorm_weight=None,
    rmsnorm_eps=1e-6,
    outproj_weight=None,
    outproj_bias=None,
    headdim=None,
    ngroups=1,
    norm_before_gate=True,
):
    """Mamba-2 between in_proj and the end. zxbcdt [b s 2i + 2gr + h]. Returns [b s i], or what out_proj makes of it."""
    nh = dt_bias.shape[0]
    ni = nh * (headdim if D.dim() == 1 else D.shape[1])
    z, xBC, dt = zxbcdt.split([ni, conv1d_weight.shape[0], nh], dim=-1)
    heads = z.unflatten(-1, (nh, -1))
    y = mamba_conv1d_scan_ref(
        xBC,
        conv1d_weight,
        conv1d_bias,
        dt,
        A,
        chunk_size,
        D,
        heads if rmsnorm_weight is None else None,
        dt_bias,
        True,
        dt_limit,
        activation,
        ni // nh,
        ngroups,
    ).flatten(2)
    if rmsnorm_weight is not None:
        y = rms_norm_gated_ref(y, rmsnorm_weight, None, z, rmsnorm_eps, ni // ngroups, norm_before_gate)
    return y if outproj_weight is None else F.linear(y, outproj_weight, outproj_bias)


def segsum(x):
    """x [.. s] to [.. s s]: the sum of x over (j, i] below and on the diagonal, -inf above."""
    n = x.shape[-1]
    strict = torch.ones(n, n, dtype=torch.bool, device=x.device).tril(-1)
    sums = torch.where(strict, x[..., :, None], 0.0).cumsum(-2)
    return sums.masked_fill(torch.ones(n, n, dtype=torch.bool, device=x.device).triu(1), float("-inf"))


def segsum_unstable(x):
    """The same by differences of one running sum, which loses digits in long rows."""
    total = x.cumsum(-1)
    above = torch.ones(x.shape[-1], x.shape[-1], dtype=torch.bool, device=x.device).triu(1)
    return (total[..., :, None] - total[..., None, :]).masked_fill(above, float("-inf"))


def ssd_minimal_discrete(X, A, B, C, block_len, initial_states=None):
    """X [b s h p] = x dt, A [b s h] = dt A, B and C [b s h r]. Returns y [b s h p] and the final state [b h p r]."""
    if X.shape[1] % block_len:
        raise ValueError(f"ssd_minimal_discrete: {X.shape[1]} tokens are no multiple of block_len = {block_len}")
    state = X.new_zeros(X.shape[0], *X.shape[2:], B.shape[-1])
    if initial_states is not None:
        state = state + initial_states.reshape(state.shape)
    ys = []
    for x, a, b, c in zip(*(m.split(block_len, dim=1) for m in (X, A, B, C))):
        a = a.transpose(1, 2)
        total = a.cumsum(-1)
        weights = torch.einsum("blhr,bmhr->bhlm", c, b) * torch.exp(segsum(a))
        y = torch.einsum("bhlm,bmhp->blhp", weights, x)
        ys.append(y + torch.einsum("blhr,bhpr,bhl->blhp", c, state, torch.exp(total)))
        carry = torch.exp(total[..., -1:] - total)
        state = torch.exp(total[..., -1])[..., None, None] * state + torch.einsum("bhl,blhr,blhp->bhpr", carry, b, x)
    return torch.cat(ys, dim=1), state
