"""mamba_ssm.ops.triton.layer_norm (formerly layernorm) and layernorm_gated."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from krait._compat import calls as K


def _normalize(total, weight, bias, eps, is_rms_norm):
    """The norm of the sum, in the type of the weight's product with it."""
    if not is_rms_norm:
        return F.layer_norm(
            total, total.shape[-1:], weight.to(total.dtype), None if bias is None else bias.to(total.dtype), eps
        )
    y = K.rms_norm(total, weight.to(total.dtype), eps)
    return y if bias is None else y + bias.to(total.dtype)


def _dropped(x, dropout_p, want_mask):
    """x with dropout, and the mask if asked for: True where kept."""
    if dropout_p <= 0.0:
        return x, torch.ones_like(x, dtype=torch.bool) if want_mask else None
    mask = torch.rand_like(x, dtype=torch.float32) >= dropout_p
    return x * mask.to(x.dtype) / (1.0 - dropout_p), mask if want_mask else None


def layer_norm_fn(x, weight, bias, residual=None, x1=None, weight1=None, bias1=None, eps=1e-6, dropout_p=0.0, rowscale=None,
                  prenorm=False, residual_in_fp32=False, is_rms_norm=False, return_dropout_mask=False):
    """The norm of dropout(rowscale x) + dropout(x1) + residual, summed in f32 and rounded to the type of x at the end.

    weight1, bias1: a second norm of the same sum. Returns y; then y of weight1 if given; then with prenorm the sum, in
    the type of residual, or in f32 with residual_in_fp32 and no residual, else in that of x; then with
    return_dropout_mask two masks.
    """
    if x1 is not None and rowscale is not None:
        raise ValueError("layer_norm_fn: rowscale and x1 are given, but the official function takes only one of them")
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    scaled = x.to(wide) if rowscale is None else x.to(wide) * rowscale.to(wide)[..., None]
    total, mask = _dropped(scaled, dropout_p, return_dropout_mask)
    mask1 = None
    if x1 is not None:
        added, mask1 = _dropped(x1.to(wide), dropout_p, return_dropout_mask)
        total = total + added
    if residual is not None:
        total = total + residual.to(wide)
    results = [_normalize(total, weight, bias, eps, is_rms_norm).to(x.dtype)]
    if weight1 is not None:
        results.append(_normalize(total, weight1, bias1, eps, is_rms_norm).to(x.dtype))
    if prenorm:
        kept = residual.dtype if residual is not None else torch.float32 if residual_in_fp32 else x.dtype
        results.append(total.to(torch.promote_types(kept, wide) if wide == torch.float64 else kept))
    if return_dropout_mask:
        results += [mask, mask1]
    return tuple(results) if len(results) > 1 else results[0]


def rms_norm_fn(x, weight, bias, residual=None, x1=None, weight1=None, bias1=None, eps=1e-6, dropout_p=0.0, rowscale=None,
                prenorm=False, residual_in_fp32=False, return_dropout_mask=False):
    """layer_norm_fn with an RMS norm."""
    return layer_norm_fn(
        x,
        weight,
        bias,
        residual,
        x1,
        weight1,
        bias1,
        eps,
        dropout_p,
        rowscale,
        prenorm,
        residual_in_fp32,
        True,
        return_dropout_mask,
    )


def layer_norm_linear_fn(x, norm_weight, norm_bias, linear_weight, linear_bias, residual=None, eps=1e-6, prenorm=False,
                         residual_in_fp32=False, is_rms_norm=False):
    """layer_norm_fn, then a linear layer."""
    y = layer_norm_fn(x, norm_weight, norm_bias, residual, eps=eps, prenorm=prenorm, residual_in_fp32=residual_in_fp32,
                      is_rms_norm=is_rms_norm)
    y, total = y if prenorm else (y, None)
    out = K.linear(y, linear_weight, linear_bias)
    return (out, total) if prenorm else out


class RMSNorm(nn.Module):
    """RMS norm with residual, as blocks use it."""

    def __init__(self, hidden_size, eps=1e-5, dropout_p=0.0, device=None, dtype=None):
        super().__init__()
        self.eps = eps
        self.drop = nn.Dropout(dropout_p) if dropout_p > 0.0 else None
        self.weight = nn.Parameter(torch.empty(hidden_size, device=device, dtype=dtype))
        self.register_parameter("bias", None)
        self.reset_parameters()

    def reset_parameters(self):
        nn.init.ones_(self.weight)

    def forward(self, x, residual=None, prenorm=False, residual_in_fp32=False):
        return rms_norm_fn(x, self.weight, self.bias, residual=residual, eps=self.eps,
                           dropout_p=self.drop.p if self.drop is not None and self.training else 0.0, prenorm=prenorm,
                           residual_in_fp32=residual_in_fp32)


# ---- layernorm_gated ----


def gated_layernorm_fn(x, weight, bias, z=None, eps=1e-6, group_size=None, norm_before_gate=True, is_rms_norm=False):
    """The norm of groups of group_size channels, times silu(z) after it or before it. x, z [.. i]."""
    groups = 1 if group_size is None else x.shape[-1] // group_size
    if is_rms_norm:
        if z is None:
            y = K.gated_norm(x, None, weight.to(x.dtype), eps, groups, norm_before_gate)
            return y if bias is None else (y + bias).to(x.dtype)
        if bias is None:
            return K.gated_norm(x, z.to(x.dtype), weight.to(x.dtype), eps, groups, norm_before_gate)
        y = x if norm_before_gate else x * F.silu(z)
        y = K.gated_norm(y, None, weight.to(x.dtype), eps, groups, norm_before_gate) + bias
        return (y * F.silu(z) if norm_before_gate else y).to(x.dtype)
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    y = x.to(wide) if z is None or norm_before_gate else x.to(wide) * F.silu(z.to(wide))
    y = F.layer_norm(y.unflatten(-1, (groups, -1)), (x.shape[-1] // groups,), eps=eps).flatten(-2) * weight
    y = y if bias is None else y + bias
    return (y * F.silu(z.to(wide)) if z is not None and norm_before_gate else y).to(x.dtype)


def gated_rmsnorm_fn(x, weight, bias, z=None, eps=1e-6, group_size=None, norm_before_gate=True):
    """The same with an RMS norm."""
    return gated_layernorm_fn(x, weight, bias, z, eps, group_size, norm_before_gate, True)


class GatedLayerNorm(nn.Module):
    """Layer norm over groups with a gate."""

    is_rms_norm = False

    def __init__(self, hidden_size, eps=1e-5, group_size=None, norm_before_gate=True, device=None, dtype=None):
        super().__init__()
        self.eps, self.group_size, self.norm_before_gate = eps, group_size, norm_before_gate
        self.weight = nn.Parameter(torch.empty(hidden_size, device=device, dtype=dtype))
        self._make_bias(hidden_size, device, dtype)
        self.reset_parameters()

    def _make_bias(self, hidden_size, device, dtype):
        self.bias = nn.Parameter(torch.empty(hidden_size, device=device, dtype=dtype))

    def reset_parameters(self):
        nn.init.ones_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, x, z=None):
        return gated_layernorm_fn(x, self.weight, self.bias, z, self.eps, self.group_size, self.norm_before_gate,
                                  self.is_rms_norm)


class GatedRMSNorm(GatedLayerNorm):
    """RMS norm over groups with a gate; it has no bias."""

    is_rms_norm = True

    def _make_bias(self, hidden_size, device, dtype):
        self.register_parameter("bias", None)
