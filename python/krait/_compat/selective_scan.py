"""mamba_ssm.ops.selective_scan_interface, and the functions of the extension selective_scan_cuda."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from krait._compat.causal_conv import causal_conv1d_fn
from krait._compat.checks import refuse_complex
from krait._compat import calls as K


def _tokens(m):
    """[b i s] as [b s i]."""
    return m.transpose(1, 2)


def _grouped(m, nb, ns):
    """B or C, [i r], [b r s] or [b g r s], as [b s g r]."""
    if m.dim() == 2:
        return m.expand(nb, ns, *m.shape)
    return m.permute(0, 2, 1).unsqueeze(2) if m.dim() == 3 else m.permute(0, 3, 1, 2)


def step_size(delta, delta_bias, delta_softplus):
    """delta [b s i] with the bias [i] and softplus, in f32 or f64."""
    if delta.dtype in (torch.bfloat16, torch.float16):
        delta = delta.float()
    if delta_bias is not None:
        delta = delta + delta_bias.to(delta.dtype)
    return F.softplus(delta) if delta_softplus else delta


def scan_tokens(u, delta, A, B, C, D, z, delta_bias, delta_softplus):
    """The scan on [b s i], B and C as in the official function. Returns y [b s i] and the last state [b i r]."""
    refuse_complex("selective_scan_fn", A, B, C)
    nb, ns, ni = u.shape
    groups = {m.shape[0] if m.dim() == 2 else 1 if m.dim() == 3 else m.shape[1] for m in (B, C)}
    B, C = _grouped(B, nb, ns), _grouped(C, nb, ns)
    if len(groups) > 1:
        B, C = (m.repeat_interleave(max(groups) // m.shape[2], dim=2) for m in (B, C))
    dt = step_size(delta, delta_bias, delta_softplus)
    wide = dt.dtype
    return K.selective_scan(u, dt, A.to(wide), B.to(u.dtype), C.to(u.dtype), None if D is None else D.to(wide),
                            None if z is None else z.to(u.dtype))


def selective_scan_fn(u, delta, A, B, C, D=None, z=None, delta_bias=None, delta_softplus=False, return_last_state=False):
    """The selective scan of Mamba-1: h_t = exp(dt A) h_{t-1} + dt B u_t, y_t = <C, h_t> + D u_t, times silu(z) if given.

    u, delta, z [b i s]; A [i r], real; B and C [i r], [b r s] or [b g r s]; D, delta_bias [i].
    Returns y [b i s] in the type of u; with return_last_state also the last state [b i r], which has a gradient here.
    """
    y, last = scan_tokens(
        _tokens(u), _tokens(delta), A, B, C, D, None if z is None else _tokens(z), delta_bias, delta_softplus
    )
    return (_tokens(y), last) if return_last_state else _tokens(y)


def _normed(m, weight, eps):
    return m if weight is None else K.rms_norm(m, weight.to(m.dtype), eps)


def _is_ones(weight):
    return weight is not None and not weight.requires_grad and bool((weight == 1).all())


def mamba_inner_fn(
    xz,
    conv1d_weight,
    conv1d_bias,
    x_proj_weight,
    delta_proj_weight,
    out_proj_weight,
    out_proj_bias,
    A,
    B=None,
    C=None,
    D=None,
    delta_bias=None,
    B_proj_bias=None,
    C_proj_bias=None,
    delta_softplus=True,
    checkpoint_lvl=1,
    b_rms_weight=None,
    c_rms_weight=None,
    dt_rms_weight=None,
    b_c_dt_rms_eps=1e-6,
):
    """Mamba-1 between in_proj and the end: convolution, projections of dt, B and C, scan, out_proj. xz [b 2i s].

    checkpoint_lvl has no effect on results: the ops of this package save their operands and nothing else. dt_rms_weight
    [i] is of a norm of dt after its projection; but a constant weight of ones is FalconMamba's, whose norm comes before
    the projection in every other path of that model, and so it does here. Returns [b s d].
    """
    refuse_complex("mamba_inner_fn", A, B, C)
    x, z = xz.chunk(2, dim=1)
    x = _tokens(causal_conv1d_fn(x, conv1d_weight.squeeze(1), conv1d_bias, activation="silu"))
    rank, nr = delta_proj_weight.shape[1], A.shape[1]
    projected = K.linear(x, x_proj_weight)
    low = projected[..., :rank]
    if _is_ones(dt_rms_weight):
        low, dt_rms_weight = _normed(low, low.new_ones(rank), b_c_dt_rms_eps), None
    delta = K.linear(low, delta_proj_weight)
    if B is None:
        b = projected[..., rank:rank + nr]
        B = _tokens(_normed(b if B_proj_bias is None else b + B_proj_bias.to(b.dtype), b_rms_weight, b_c_dt_rms_eps))
    if C is None:
        c = projected[..., -nr:]
        C = _tokens(_normed(c if C_proj_bias is None else c + C_proj_bias.to(c.dtype), c_rms_weight, b_c_dt_rms_eps))
    delta = _normed(delta, dt_rms_weight, b_c_dt_rms_eps)
    y, _ = scan_tokens(x, delta, A, B, C, D, _tokens(z), delta_bias, delta_softplus)
    return K.linear(y, out_proj_weight, out_proj_bias)


def rms_norm_forward(x, weight, bias, eps=1e-6, is_rms_norm=True):
    """The norm of rows x [n i], without the other operands of rms_norm_fn and layer_norm_fn."""
    from krait._compat.layer_norms import layer_norm_fn

    return layer_norm_fn(x, weight, bias, eps=eps, is_rms_norm=is_rms_norm)


# ---- selective_scan_cuda ----


def _saved_state(last):
    """What callers keep for bwd: [b i 1 2r], whose odd entries are the last state, as they read it. bwd does not use it."""
    return torch.stack([torch.zeros_like(last), last], dim=-1).flatten(-2).unsqueeze(2)


def _forward(u, delta, A, B, C, D, z, delta_bias, delta_softplus):
    with torch.no_grad():
        y, last = selective_scan_fn(u, delta, A, B, C, D, z, delta_bias, delta_softplus, True)
        return y, _saved_state(last)


def _backward(u, delta, A, B, C, D, z, delta_bias, dout, delta_softplus):
    """Gradients of all operands, None for absent ones, and y."""
    operands = [None if m is None else m.detach().requires_grad_() for m in (u, delta, A, B, C, D, z, delta_bias)]
    present = [m for m in operands if m is not None]
    with torch.enable_grad():
        y = selective_scan_fn(*operands, delta_softplus)
        found = iter(torch.autograd.grad(y, present, dout.to(y.dtype)))
    return [None if m is None else next(found) for m in operands], y.detach()


class SelectiveScanCuda:
    """The functions of the extension module, as Vim, U-Mamba and others call them."""

    @staticmethod
    def fwd(u, delta, A, B, C, D, z, delta_bias, delta_softplus):
        """[y, state], or [y before the gate, state, gated y] if z is given. u, delta, z [b i s]."""
        y, state = _forward(u, delta, A, B, C, D, None, delta_bias, delta_softplus)
        if z is None:
            return [y, state]
        return [y, state, (y * F.silu(z.to(y.dtype))).to(u.dtype)]

    @staticmethod
    def bwd(u, delta, A, B, C, D, z, delta_bias, dout, x, out, dz, delta_softplus, recompute_out_z):
        """[du, ddelta, dA, dB, dC, dD, ddelta_bias], then dz if z is given, then the gated y if asked for. dz is written
        into the tensor of that name if there is one. x and out, kept from fwd, are not needed."""
        (du, ddelta, dA, dB, dC, dD, gate, dbias), y = _backward(u, delta, A, B, C, D, z, delta_bias, dout, delta_softplus)
        results = [du, ddelta, dA, dB, dC, dD, dbias]
        if z is not None:
            results.append(gate if dz is None else dz.copy_(gate))
        if recompute_out_z:
            results.append(y)
        return results


class SelectiveScanCudaOflex:
    """The same of VMamba's extension, which has no z; with out_float y is f32 whatever the type of u."""

    @staticmethod
    def fwd(u, delta, A, B, C, D, delta_bias, delta_softplus, nrows=1, out_float=True):
        """[y, state]. nrows chooses among kernels there and has no effect."""
        wide = u.float() if out_float and u.dtype != torch.float64 else u
        y, state = _forward(wide, delta, A, B, C, D, None, delta_bias, delta_softplus)
        return [y, state]

    @staticmethod
    def bwd(u, delta, A, B, C, D, delta_bias, dout, x, delta_softplus, nrows=1):
        """[du, ddelta, dA, dB, dC, dD, ddelta_bias]."""
        found, _ = _backward(u, delta, A, B, C, D, None, delta_bias, dout, delta_softplus)
        del found[6]
        return found
