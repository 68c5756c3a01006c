"""mamba_ssm.modules.mamba2_simple.Mamba2Simple, the smaller Mamba-2 module: one form, no cache."""

from __future__ import annotations

import math

import torch
from torch import nn

from krait._compat import ssd_combined
from krait._compat.layer_norms import GatedRMSNorm
from krait.torch.modules import Linear


def _undecayed(parameter):
    parameter._no_weight_decay = True
    return parameter


def _initial_dt_bias(count, dt_min, dt_max, floor, **kind):
    """The inverse of softplus at steps drawn evenly on a logarithmic scale."""
    dt = torch.exp(torch.rand(count, **kind) * (math.log(dt_max) - math.log(dt_min)) + math.log(dt_min)).clamp(min=floor)
    return dt + torch.log(-torch.expm1(-dt))


class Mamba2Simple(nn.Module):
    """in_proj to [z, x, B, C, dt], convolution, SSD, gated norm by groups, out_proj. u [b s d] to [b s d]."""

    def __init__(
        self,
        d_model,
        d_state=64,
        d_conv=4,
        conv_init=None,
        expand=2,
        headdim=128,
        ngroups=1,
        A_init_range=(1, 16),
        dt_min=0.001,
        dt_max=0.1,
        dt_init_floor=1e-4,
        dt_limit=(0.0, float("inf")),
        learnable_init_states=False,
        activation="swish",
        bias=False,
        conv_bias=True,
        chunk_size=256,
        use_mem_eff_path=True,
        layer_idx=None,
        device=None,
        dtype=None,
    ):
        kind = {"device": device, "dtype": dtype}
        super().__init__()
        self.d_model, self.d_state, self.d_conv, self.conv_init, self.expand = d_model, d_state, d_conv, conv_init, expand
        self.d_inner, self.headdim, self.ngroups = expand * d_model, headdim, ngroups
        if self.d_inner % headdim:
            raise ValueError(f"Mamba2Simple: headdim = {headdim} does not divide d_inner = {self.d_inner}")
        if activation not in ("silu", "swish"):
            raise ValueError(f"Mamba2Simple: activation is {activation!r}, but must be 'silu' or 'swish'")
        self.nheads, self.dt_limit, self.activation = self.d_inner // headdim, dt_limit, activation
        self.learnable_init_states, self.chunk_size = learnable_init_states, chunk_size
        self.use_mem_eff_path, self.layer_idx, self.act = use_mem_eff_path, layer_idx, nn.SiLU()
        conv_dim = self.d_inner + 2 * ngroups * d_state
        self.in_proj = Linear(d_model, self.d_inner + conv_dim + self.nheads, bias=bias, **kind)
        self.conv1d = nn.Conv1d(conv_dim, conv_dim, d_conv, groups=conv_dim, padding=d_conv - 1, bias=conv_bias, **kind)
        if conv_init is not None:
            nn.init.uniform_(self.conv1d.weight, -conv_init, conv_init)
        if learnable_init_states:
            self.init_states = _undecayed(nn.Parameter(torch.zeros(self.nheads, headdim, d_state, **kind)))
        self.dt_bias = _undecayed(nn.Parameter(_initial_dt_bias(self.nheads, dt_min, dt_max, dt_init_floor, **kind)))
        rates = torch.empty(self.nheads, dtype=torch.float32, device=device).uniform_(*A_init_range)
        self.A_log = _undecayed(nn.Parameter(torch.log(rates).to(dtype=dtype)))
        self.D = _undecayed(nn.Parameter(torch.ones(self.nheads, device=device)))
        self.norm = GatedRMSNorm(self.d_inner, eps=1e-5, group_size=self.d_inner // ngroups, norm_before_gate=False, **kind)
        self.out_proj = Linear(self.d_inner, d_model, bias=bias, **kind)

    def forward(self, u, seq_idx=None):
        """seq_idx [b s]: where it changes, a new sequence begins."""
        initial = self.init_states.expand(u.shape[0], -1, -1, -1) if self.learnable_init_states else None
        y = ssd_combined.mamba_split_conv1d_scan_combined(
            self.in_proj(u),
            self.conv1d.weight.squeeze(1),
            self.conv1d.bias,
            self.dt_bias,
            -torch.exp(self.A_log),
            self.D,
            self.chunk_size,
            initial,
            seq_idx,
            self.dt_limit,
            activation=self.activation,
            rmsnorm_weight=self.norm.weight,
            rmsnorm_eps=self.norm.eps,
            headdim=self.headdim,
            ngroups=self.ngroups,
            norm_before_gate=False,
        )
        return self.out_proj(y)
