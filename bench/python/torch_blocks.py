"""Mamba blocks in plain torch ops, the best formulations that eager mode has: what bench_blocks.py compares with."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def conv_silu(x_bsv: torch.Tensor, weight_v1k: torch.Tensor, bias_v: torch.Tensor) -> torch.Tensor:
    """silu of the causal depthwise convolution, channel-first inside as torch's kernels want it."""
    length = x_bsv.shape[1]
    y = F.conv1d(x_bsv.transpose(1, 2), weight_v1k, bias_v, padding=weight_v1k.shape[2] - 1, groups=weight_v1k.shape[0])
    return F.silu(y[..., :length]).transpose(1, 2)


def ssd_grouped(x_bshp: torch.Tensor, dt_bsh: torch.Tensor, a_h: torch.Tensor, b_bsgr: torch.Tensor,
                c_bsgr: torch.Tensor, d_h: torch.Tensor, chunk_len: int) -> torch.Tensor:
    """Chunked SSD by batched products over groups: B and C are not expanded to heads.

    With n chunks of l tokens: scores C B^T once for a group, [b n g l l]; a head's decay multiplies them.
    """
    nb, ns, nh, np_ = x_bshp.shape
    ng, nr = b_bsgr.shape[2:]
    nn, nl, ne = ns // chunk_len, chunk_len, nh // ng
    x = (x_bshp * dt_bsh[..., None]).view(nb, nn, nl, ng, ne, np_)
    b = b_bsgr.view(nb, nn, nl, ng, nr).transpose(2, 3)                      # [b n g l r]
    c = c_bsgr.view(nb, nn, nl, ng, nr).transpose(2, 3)
    sums = (dt_bsh * a_h).view(nb, nn, nl, ng, ne).permute(0, 1, 3, 4, 2).cumsum(-1)   # [b n g e l]
    mask = torch.ones(nl, nl, dtype=torch.bool, device=x.device).tril()
    decay = (sums[..., :, None] - sums[..., None, :]).masked_fill(~mask, float("-inf")).exp()
    scores = (c @ b.transpose(-1, -2))[:, :, :, None] * decay                # [b n g e l l]
    v = x.permute(0, 1, 3, 4, 2, 5)                                          # [b n g e l p]
    y = scores @ v
    to_end = (sums[..., -1:] - sums).exp()                                   # [b n g e l]
    weighted = (v * to_end[..., None]).transpose(-1, -2).reshape(nb, nn, ng, ne * np_, nl)
    added = (weighted @ b).view(nb, nn, ng, ne, np_, nr)                     # states of each chunk alone
    total = sums[..., -1].exp()[..., None, None]
    state, before = torch.zeros_like(added[:, 0]), []
    for i in range(nn):
        before.append(state)
        state = state * total[:, i] + added[:, i]
    entry = torch.stack(before, 1).view(nb, nn, ng, ne * np_, nr)
    carried = (entry @ c.transpose(-1, -2)).view(nb, nn, ng, ne, np_, nl).transpose(-1, -2)
    y = y + carried * sums.exp()[..., None]
    y = y.permute(0, 1, 4, 2, 3, 5).reshape(nb, ns, nh, np_)
    return y + x_bshp * d_h[:, None]


def _segsum(x: torch.Tensor) -> torch.Tensor:
    length = x.shape[-1]
    sums = x.cumsum(-1)
    keep = torch.ones(length, length, dtype=torch.bool, device=x.device).tril()
    return (sums[..., :, None] - sums[..., None, :]).masked_fill(~keep, float("-inf"))


def ssd_einsum(x_bshp: torch.Tensor, dt_bsh: torch.Tensor, a_h: torch.Tensor, b_bsgr: torch.Tensor,
               c_bsgr: torch.Tensor, d_h: torch.Tensor, chunk_len: int) -> torch.Tensor:
    """The short formulation of the Mamba-2 paper: einsums with B and C for every head, chunks joined by one matrix."""
    nb, ns, nh, np_ = x_bshp.shape
    nn = ns // chunk_len
    heads = nh // b_bsgr.shape[2]
    b, c = (t.repeat_interleave(heads, 2).view(nb, nn, chunk_len, nh, -1) for t in (b_bsgr, c_bsgr))
    x = (x_bshp * dt_bsh[..., None]).view(nb, nn, chunk_len, nh, np_)
    a = (dt_bsh * a_h).view(nb, nn, chunk_len, nh).permute(0, 3, 1, 2)       # [b h n l]
    sums = a.cumsum(-1)
    inside = torch.einsum("bclhn,bcshn,bhcls,bcshp->bclhp", c, b, _segsum(a).exp(), x)
    states = torch.einsum("bclhn,bhcl,bclhp->bchpn", b, (sums[..., -1:] - sums).exp(), x)
    states = torch.cat([torch.zeros_like(states[:, :1]), states], 1)
    between = _segsum(F.pad(sums[..., -1], (1, 0))).exp()
    entry = torch.einsum("bhzc,bchpn->bzhpn", between, states)[:, :-1]
    carried = torch.einsum("bclhn,bchpn,bhcl->bclhp", c, entry, sums.exp())
    return (inside + carried).reshape(nb, ns, nh, np_) + x_bshp * d_h[:, None]


def mamba2(m: torch.nn.Module, u: torch.Tensor, ssd, chunk_len: int) -> torch.Tensor:
    """A Mamba-2 block over the parameters of a krait.torch.Mamba2."""
    nb, ns, _ = u.shape
    z, xbc, dt = torch.split(F.linear(u, m.in_proj.weight), [m.d_ssm, m.d_ssm + 2 * m.ngroups * m.d_state, m.nheads], -1)
    x, b, c = torch.split(conv_silu(xbc, m.conv1d.weight, m.conv1d.bias),
                          [m.d_ssm, m.ngroups * m.d_state, m.ngroups * m.d_state], -1)
    y = ssd(x.reshape(nb, ns, m.nheads, m.headdim), F.softplus(dt + m.dt_bias), -m.A_log.exp(),
            b.reshape(nb, ns, m.ngroups, m.d_state), c.reshape(nb, ns, m.ngroups, m.d_state), m.D, chunk_len)
    y = y.reshape(nb, ns, m.d_ssm) * F.silu(z)
    y = F.rms_norm(y, (m.d_ssm,), m.norm.weight, m.norm.eps)
    return F.linear(y, m.out_proj.weight)


def scan_loop(x_bsi: torch.Tensor, dt_bsi: torch.Tensor, a_ir: torch.Tensor, b_bsr: torch.Tensor, c_bsr: torch.Tensor,
              d_i: torch.Tensor) -> torch.Tensor:
    """The selective scan as a loop over tokens; what does not depend on the state is computed before it.

    Doublings inside chunks instead of single steps take three times as long: they read and write [s i r] in each.
    """
    decay = (dt_bsi[..., None] * a_ir).exp()
    added = (dt_bsi * x_bsi)[..., None] * b_bsr[:, :, None, :]
    state, rows = torch.zeros_like(added[:, 0]), []
    for decay_t, added_t, c_t in zip(decay.unbind(1), added.unbind(1), c_bsr.unbind(1)):  # whose gradient is one stack
        state = torch.addcmul(added_t, decay_t, state)
        rows.append((state @ c_t[..., None])[..., 0])
    return torch.stack(rows, 1) + x_bsi * d_i


def mamba1(m: torch.nn.Module, u: torch.Tensor, scan) -> torch.Tensor:
    """A Mamba-1 block over the parameters of a krait.torch.Mamba."""
    x, z = F.linear(u, m.in_proj.weight).chunk(2, -1)
    x = conv_silu(x, m.conv1d.weight, m.conv1d.bias)
    dt, b, c = torch.split(F.linear(x, m.x_proj.weight), [m.dt_rank, m.d_state, m.d_state], -1)
    dt = F.softplus(F.linear(dt, m.dt_proj.weight, m.dt_proj.bias))
    y = scan(x, dt, -m.A_log.exp(), b, c, m.D)
    return F.linear(y * F.silu(z), m.out_proj.weight)
