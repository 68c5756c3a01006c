"""Mamba, Mamba2 and Mamba3: modules with the arguments, attributes and state_dict of the official package.

A state_dict of either loads into the other. Between the projections each block is one op (torch.ops.krait.mambaN_mixer).
Besides the official arguments every forward takes `state` and `return_state`: a sequence may be cut anywhere. A state is a
tuple of tensors in the order of the official cache.
"""

from __future__ import annotations

import math
from typing import Any, Sequence

import torch
import torch.nn.functional as F
from torch import nn

from krait import _core
from krait.torch import functional as KF
from krait.torch.kernels import OptionalTensor, compute_dtype
from krait.torch.ops import NAMESPACE as _ops

Tensor = torch.Tensor
State = tuple[Tensor, ...]


class RMSNorm(nn.Module):
    """RMS norm with a gain, over groups of `group_size` channels; with a gate z as in the blocks."""

    def __init__(self, hidden_size: int, eps: float = 1e-5, group_size: int | None = None, norm_before_gate: bool = True,
                 device: Any = None, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        if group_size is not None and hidden_size % group_size:
            raise _core.ArgumentError(f"RMSNorm: group_size = {group_size} does not divide hidden_size = {hidden_size}")
        self.eps, self.group_size, self.norm_before_gate = eps, group_size, norm_before_gate
        self.weight = nn.Parameter(torch.ones(hidden_size, device=device, dtype=dtype))
        self.register_parameter("bias", None)

    @property
    def groups(self) -> int:
        return 1 if self.group_size is None else self.weight.shape[0] // self.group_size

    def forward(self, x: Tensor, z: OptionalTensor = None) -> Tensor:
        if z is None:
            return KF.rms_norm(x, self.weight, eps=self.eps, groups=self.groups)
        return KF.gated_norm(x, z, self.weight, eps=self.eps, groups=self.groups, norm_before_gate=self.norm_before_gate)


class Linear(nn.Linear):
    """nn.Linear whose product on the CPU is the library's."""

    def forward(self, x: Tensor) -> Tensor:
        return KF.linear(x, self.weight, self.bias)


def _inverse_softplus_steps(count: int, dt_min: float, dt_max: float, floor: float, device: Any,
                            dtype: torch.dtype | None) -> Tensor:
    """Values whose softplus is log-uniform between dt_min and dt_max, at least floor."""
    low, high = math.log(dt_min), math.log(dt_max)
    dt = torch.exp(torch.rand(count, device=device, dtype=dtype) * (high - low) + low).clamp(min=floor)
    return dt + torch.log(-torch.expm1(-dt))


def _undecayed(value: Tensor) -> nn.Parameter:
    parameter = nn.Parameter(value)
    parameter._no_weight_decay = True  # type: ignore[attr-defined]
    return parameter


def _refuse_process_group(process_group: Any, name: str) -> None:
    if process_group is not None:
        raise _core.UnsupportedError(f"{name}: process_group is given, but a module of krait.torch is not split over processes")


class _Block(nn.Module):
    """What the three families share: caches of the official package, and where sequences start."""

    layer_idx: int | None
    in_proj: nn.Linear
    out_proj: nn.Linear

    def allocate_inference_cache(self, batch_size: int, max_seqlen: int, dtype: torch.dtype | None = None,
                                 **kwargs: Any) -> State:
        raise NotImplementedError

    def _cached(self, inference_params: Any, batch: int) -> State:
        """The state of this layer in inference_params, made at its first use."""
        if self.layer_idx is None:
            raise _core.ArgumentError(f"{type(self).__name__}: inference_params is given, but the module has no layer_idx")
        held: dict[int, State] = inference_params.key_value_memory_dict
        if self.layer_idx not in held:
            held[self.layer_idx] = self.allocate_inference_cache(batch, 0)
        return held[self.layer_idx]

    def _take(self, inference_params: Any, state: State | None, batch: int) -> tuple[State | None, State | None]:
        """The state to begin with, and the cache to write to."""
        if inference_params is None:
            return state, None
        if state is not None:
            raise _core.ArgumentError(f"{type(self).__name__}: state and inference_params are both given; give one of them")
        cache = self._cached(inference_params, batch)
        return (cache if inference_params.seqlen_offset > 0 else None), cache

    @staticmethod
    def _store(cache: State | None, state: State) -> None:
        if cache is not None:
            with torch.no_grad():
                for held, new in zip(cache, state):
                    held.copy_(new)


def _result(out: Tensor, state: State, return_state: bool) -> Any:
    return (out, state) if return_state else out


class Mamba(_Block):
    """The Mamba-1 block (S6)."""

    def __init__(self, d_model: int, d_state: int = 16, d_conv: int = 4, expand: int = 2, dt_rank: int | str = "auto",
                 dt_min: float = 0.001, dt_max: float = 0.1, dt_init: str = "random", dt_scale: float = 1.0,
                 dt_init_floor: float = 1e-4, conv_bias: bool = True, bias: bool = False, use_fast_path: bool = True,
                 layer_idx: int | None = None, device: Any = None, dtype: torch.dtype | None = None) -> None:
        kind: dict[str, Any] = {"device": device, "dtype": dtype}
        super().__init__()
        self.d_model, self.d_state, self.d_conv, self.expand = d_model, d_state, d_conv, expand
        self.d_inner = int(expand * d_model)
        self.dt_rank = math.ceil(d_model / 16) if isinstance(dt_rank, str) else dt_rank
        self.use_fast_path, self.layer_idx = use_fast_path, layer_idx
        self.activation, self.act = "silu", nn.SiLU()

        self.in_proj = Linear(d_model, 2 * self.d_inner, bias=bias, **kind)
        self.conv1d = nn.Conv1d(self.d_inner, self.d_inner, d_conv, groups=self.d_inner, padding=d_conv - 1, bias=conv_bias,
                                **kind)
        self.x_proj = Linear(self.d_inner, self.dt_rank + 2 * d_state, bias=False, **kind)
        self.dt_proj = Linear(self.dt_rank, self.d_inner, bias=True, **kind)
        self._init_steps(dt_init, dt_scale, (dt_min, dt_max, dt_init_floor), kind)
        rates = torch.arange(1, d_state + 1, dtype=torch.float32, device=device).repeat(self.d_inner, 1)
        self.A_log = _undecayed(torch.log(rates))
        self.D = _undecayed(torch.ones(self.d_inner, device=device))
        self.out_proj = Linear(self.d_inner, d_model, bias=bias, **kind)

    def _init_steps(self, dt_init: str, scale: float, steps: tuple[float, float, float], kind: dict[str, Any]) -> None:
        bound = self.dt_rank**-0.5 * scale
        if dt_init == "constant":
            nn.init.constant_(self.dt_proj.weight, bound)
        elif dt_init == "random":
            nn.init.uniform_(self.dt_proj.weight, -bound, bound)
        else:
            raise _core.ArgumentError(f"Mamba: dt_init = {dt_init!r} is neither 'random' nor 'constant'")
        with torch.no_grad():
            self.dt_proj.bias.copy_(_inverse_softplus_steps(self.d_inner, *steps, **kind))
        self.dt_proj.bias._no_reinit = True  # type: ignore[attr-defined]

    def forward(self, hidden_states: Tensor, inference_params: Any = None, *, state: State | None = None,
                return_state: bool = False, seq_idx: OptionalTensor = None, cu_seqlens: OptionalTensor = None) -> Any:
        """hidden_states [b s d] -> [b s d]. state: (conv [q v k], ssm [q v r]); seq_idx, cu_seqlens: packed rows."""
        batch, length, _ = hidden_states.shape
        state, cache = self._take(inference_params, state, batch)
        window, ssm = state if state is not None else (None, None)
        y, ssm, window = _ops.mamba1_mixer(
            self.in_proj(hidden_states), self.conv1d.weight.squeeze(1), self.conv1d.bias, self.x_proj.weight,
            self.dt_proj.weight, self.dt_proj.bias, self.A_log, self.D, ssm, window,
            KF.sequences(batch, length, seq_idx=seq_idx, cu_seqlens=cu_seqlens, pin=hidden_states.is_cuda))
        self._store(cache, (window, ssm))
        return _result(self.out_proj(y), (window, ssm), return_state)

    @torch.no_grad()
    def step(self, hidden_states: Tensor, conv_state: Tensor, ssm_state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """One token [b 1 d]; the states are updated in place."""
        x, z = self.in_proj(_one_token(hidden_states, "Mamba.step")).chunk(2, -1)
        x = _ops.conv_step(conv_state, x, self.conv1d.weight.squeeze(1), self.conv1d.bias, True)
        low, b, c = self.x_proj(x).split([self.dt_rank, self.d_state, self.d_state], -1)
        dt = F.softplus(self.dt_proj(low))
        y = _ops.scan_step(ssm_state, x, dt, -torch.exp(self.A_log.to(compute_dtype(dt))), b.unsqueeze(1), c.unsqueeze(1), self.D, z)
        return self.out_proj(y).unsqueeze(1), conv_state, ssm_state

    def allocate_inference_cache(self, batch_size: int, max_seqlen: int, dtype: torch.dtype | None = None,
                                 **kwargs: Any) -> State:
        """Zeros for conv [b v k] and ssm [b v r]; max_seqlen does not matter."""
        weight = self.conv1d.weight
        kind: dict[str, Any] = {"device": weight.device, "dtype": dtype or weight.dtype}
        return (torch.zeros(batch_size, self.d_inner, self.d_conv, **kind),
                torch.zeros(batch_size, self.d_inner, self.d_state, **kind))


def _one_token(x: Tensor, name: str) -> Tensor:
    if x.dim() == 3 and x.shape[1] == 1:
        return x.squeeze(1)
    if x.dim() == 2:
        return x
    raise _core.ShapeError(f"{name}: hidden_states has shape {list(x.shape)}, but a step takes one token, [b, 1, d] or [b, d]")


class Mamba2(_Block):
    """The Mamba-2 block (SSD). norm_groups and learnable_init_states are ours; see docs/python.md."""

    def __init__(self, d_model: int, d_state: int = 128, d_conv: int = 4, conv_init: float | None = None, expand: int = 2,
                 headdim: int = 64, d_ssm: int | None = None, ngroups: int = 1,
                 A_init_range: tuple[float, float] = (1, 16), D_has_hdim: bool = False, rmsnorm: bool = True,
                 norm_before_gate: bool = False, dt_min: float = 0.001, dt_max: float = 0.1, dt_init_floor: float = 1e-4,
                 dt_limit: tuple[float, float] = (0.0, math.inf), bias: bool = False, conv_bias: bool = True,
                 chunk_size: int = 256, use_mem_eff_path: bool = True, layer_idx: int | None = None,
                 process_group: Any = None, sequence_parallel: bool = True, device: Any = None,
                 dtype: torch.dtype | None = None, *, learnable_init_states: bool = False,
                 norm_groups: int | None = None) -> None:
        kind: dict[str, Any] = {"device": device, "dtype": dtype}
        super().__init__()
        _refuse_process_group(process_group, "Mamba2")
        self.d_model, self.d_state, self.d_conv, self.conv_init, self.expand = d_model, d_state, d_conv, conv_init, expand
        self.process_group, self.sequence_parallel, self.world_size, self.local_rank = None, sequence_parallel, 1, 0
        self.d_inner, self.headdim, self.ngroups = expand * d_model, headdim, ngroups
        self.d_ssm = self.d_inner if d_ssm is None else d_ssm
        self.D_has_hdim, self.rmsnorm, self.norm_before_gate, self.dt_limit = D_has_hdim, rmsnorm, norm_before_gate, dt_limit
        self.activation, self.act = "silu", nn.SiLU()
        self.chunk_size, self.use_mem_eff_path, self.layer_idx = chunk_size, use_mem_eff_path, layer_idx
        self._check_sizes()
        self.nheads = self.d_ssm // headdim

        conv_dim = self.d_ssm + 2 * ngroups * d_state
        d_in_proj = 2 * self.d_inner + 2 * ngroups * d_state + self.nheads
        self.in_proj = Linear(d_model, d_in_proj, bias=bias, **kind)
        self.conv1d = nn.Conv1d(conv_dim, conv_dim, d_conv, groups=conv_dim, padding=d_conv - 1, bias=conv_bias, **kind)
        if conv_init is not None:
            nn.init.uniform_(self.conv1d.weight, -conv_init, conv_init)
        if learnable_init_states:
            self.init_states = _undecayed(torch.zeros(self.nheads, headdim, d_state, **kind))
        self.dt_bias = _undecayed(_inverse_softplus_steps(self.nheads, dt_min, dt_max, dt_init_floor, **kind))
        rates = torch.empty(self.nheads, dtype=torch.float32, device=device).uniform_(*A_init_range)
        self.A_log = _undecayed(torch.log(rates).to(dtype=dtype))
        self.D = _undecayed(torch.ones(self.d_ssm if D_has_hdim else self.nheads, device=device))
        if rmsnorm:
            self.norm = RMSNorm(self.d_ssm, eps=1e-5, norm_before_gate=norm_before_gate,
                                group_size=self.d_ssm // (norm_groups or ngroups), **kind)
        self.out_proj = Linear(self.d_inner, d_model, bias=bias, **kind)

    def _check_sizes(self) -> None:
        if self.d_ssm % self.headdim:
            raise _core.ArgumentError(f"Mamba2: headdim = {self.headdim} does not divide d_ssm = {self.d_ssm}")
        if (self.d_ssm // self.headdim) % self.ngroups:
            raise _core.ArgumentError(
                f"Mamba2: ngroups = {self.ngroups} does not divide the {self.d_ssm // self.headdim} heads (d_ssm / headdim)")

    def forward(self, u: Tensor, seqlen: int | None = None, seq_idx: OptionalTensor = None,
                cu_seqlens: OptionalTensor = None, inference_params: Any = None, *, state: State | None = None,
                return_state: bool = False) -> Any:
        """u [b s d], or [b s, d] with seqlen -> the same shape. state: (conv [q v k], ssm [q h p r]).

        seq_idx, cu_seqlens: packed rows; either of them keeps sequences apart, and states then have a row for each.
        """
        shape = u.shape
        u = u if seqlen is None else u.view(-1, seqlen, shape[-1])
        batch, length, _ = u.shape
        limits = None if seq_idx is not None else cu_seqlens
        packed = KF.sequences(batch, length, seq_idx=seq_idx, cu_seqlens=limits, pin=u.is_cuda)
        state, cache = self._take(inference_params, state, batch)
        window, ssm = state if state is not None else (None, self._initial(batch if packed is None else packed.shape[0]))
        mlp, zxbcdt = self._project(u)
        mix = self._mix_by_channel if self.D_has_hdim else self._mix
        y, ssm, window = mix(zxbcdt, ssm, window, packed)
        self._store(cache, (window, ssm))
        out = self.out_proj(y if mlp is None else torch.cat([mlp, y], -1))
        return _result(out if seqlen is None else out.view(shape), (window, ssm), return_state)

    def _initial(self, count: int) -> OptionalTensor:
        return self.init_states.expand(count, -1, -1, -1) if hasattr(self, "init_states") else None

    def _project(self, u: Tensor) -> tuple[OptionalTensor, Tensor]:
        """The parallel MLP's part, None without one, and the rest of the projection."""
        d_mlp = self.d_inner - self.d_ssm
        zxbcdt = self.in_proj(u)
        if d_mlp == 0:
            return None, zxbcdt
        z0, x0, rest = zxbcdt.split([d_mlp, d_mlp, zxbcdt.shape[-1] - 2 * d_mlp], -1)
        return KF.gate(x0, z0), rest

    def _mix(self, zxbcdt: Tensor, ssm: OptionalTensor, window: OptionalTensor,
             packed: OptionalTensor) -> tuple[Tensor, Tensor, Tensor]:
        norm = self.norm if self.rmsnorm else None
        y, ssm, window, _, _ = _ops.mamba2_mixer(
            zxbcdt, self.conv1d.weight.squeeze(1), self.conv1d.bias, self.dt_bias, self.A_log, self.D,
            None if norm is None else norm.weight, ssm, window, packed, self.headdim, self.ngroups, 0, *self.dt_limit,
            1e-5 if norm is None else norm.eps, 1 if norm is None else norm.groups, self.norm_before_gate, False)
        return y, ssm, window

    def _split(self, zxbcdt: Tensor) -> Sequence[Tensor]:
        return zxbcdt.split([self.d_ssm, self.conv1d.weight.shape[0], self.nheads], -1)

    def _core_operands(self, xbc: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        n = self.ngroups * self.d_state
        x, b, c = xbc.split([self.d_ssm, n, n], -1)
        groups = (self.ngroups, self.d_state)
        return x.unflatten(-1, (self.nheads, self.headdim)), b.unflatten(-1, groups), c.unflatten(-1, groups)

    def _mix_by_channel(self, zxbcdt: Tensor, ssm: OptionalTensor, window: OptionalTensor,
                        packed: OptionalTensor) -> tuple[Tensor, Tensor, Tensor]:
        """The same with D for each channel, op by op."""
        z, xbc, dt = self._split(zxbcdt)
        xbc, window = KF.causal_conv(xbc, self.conv1d.weight.squeeze(1), self.conv1d.bias, window=window, sequences=packed)
        x, b, c = self._core_operands(xbc)
        dt = KF.softplus_dt(dt, self.dt_bias, self.dt_limit)
        y, ssm = KF.ssd(x, dt, -torch.exp(self.A_log.to(dt.dtype)), b, c, initial=ssm, sequences=packed)
        y = y.flatten(2) + x.flatten(2) * self.D.to(x.dtype)
        return (self.norm(y, z) if self.rmsnorm else KF.gate(y, z)), ssm, window

    @torch.no_grad()
    def step(self, hidden_states: Tensor, conv_state: Tensor, ssm_state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """One token [b 1 d]; the states are updated in place. dt_limit holds here, too."""
        mlp, zxbcdt = self._project(_one_token(hidden_states, "Mamba2.step"))
        z, xbc, dt = self._split(zxbcdt)
        xbc = _ops.conv_step(conv_state, xbc, self.conv1d.weight.squeeze(1), self.conv1d.bias, True)
        x, b, c = self._core_operands(xbc)
        dtype = compute_dtype(dt)
        dt = KF.softplus_dt(dt.to(dtype), self.dt_bias.to(dtype), self.dt_limit)
        d = None if self.D_has_hdim else self.D
        y = _ops.ssd_step(ssm_state, x, dt * -torch.exp(self.A_log.to(dt.dtype)), dt, b, c, d).flatten(1)
        if self.D_has_hdim:
            y = y + x.flatten(1) * self.D.to(x.dtype)
        y = self.norm(y, z) if self.rmsnorm else KF.gate(y, z)
        out = self.out_proj(y if mlp is None else torch.cat([mlp, y], -1))
        return out.unsqueeze(1), conv_state, ssm_state

    def allocate_inference_cache(self, batch_size: int, max_seqlen: int, dtype: torch.dtype | None = None,
                                 **kwargs: Any) -> State:
        """Zeros for conv [b v k] and ssm [b h p r], or its learned initial state; max_seqlen does not matter."""
        conv, device = self.conv1d.weight, self.in_proj.weight.device
        ssm_dtype = dtype or self.in_proj.weight.dtype
        window = torch.zeros(batch_size, conv.shape[0], self.d_conv, device=device, dtype=dtype or conv.dtype)
        ssm = torch.zeros(batch_size, self.nheads, self.headdim, self.d_state, device=device, dtype=ssm_dtype)
        initial = self._initial(batch_size)
        return window, ssm if initial is None else ssm.copy_(initial.detach())


class Mamba3(_Block):
    """The Mamba-3 block. a_activation ("heavy_tail" or "softplus"), rotation ("complex" or "quaternion"), rotation_range and
    learnable_init_states are ours; see docs/python.md."""

    def __init__(self, d_model: int, d_state: int = 128, expand: int = 2, headdim: int = 64, ngroups: int = 1,
                 rope_fraction: float = 0.5, dt_min: float = 0.001, dt_max: float = 0.1, dt_init_floor: float = 1e-4,
                 A_floor: float = 1e-4, is_outproj_norm: bool = False, is_mimo: bool = False, mimo_rank: int = 4,
                 fuse_pregate_headwise_norm: bool = True, chunk_size: int = 64, dropout: float = 0.0,
                 layer_idx: int | None = None, n_layer: int | None = None, device: Any = None,
                 dtype: torch.dtype | None = None, *, a_activation: str = "heavy_tail", rotation: str = "complex",
                 rotation_range: float = 1.0, learnable_init_states: bool = False, **kwargs: Any) -> None:
        kind: dict[str, Any] = {"device": device, "dtype": dtype}
        f32: dict[str, Any] = {"device": device, "dtype": torch.float64 if dtype is torch.float64 else torch.float32}
        super().__init__()
        self.d_model, self.d_state, self.expand, self.headdim = d_model, d_state, expand, headdim
        self.d_inner, self.chunk_size, self.layer_idx, self.A_floor = int(expand * d_model), chunk_size, layer_idx, A_floor
        self.num_bc_heads = self.ngroups = ngroups
        self.rope_fraction, self.rotation, self.rotation_range = rope_fraction, rotation, rotation_range
        self.is_outproj_norm, self.is_mimo, self.a_activation = is_outproj_norm, is_mimo, a_activation
        self.mimo_rank = mimo_rank if is_mimo else 1
        self._check_arguments()
        self.nheads, self.rotary_dim_divisor = self.d_inner // headdim, int(2 / rope_fraction)
        self.num_rope_angles = int(d_state * rope_fraction) // 2
        self.n_rotation = self.nheads * (self.num_rope_angles // 2) * 3 if self._is_quaternion else self.num_rope_angles

        n_bc = d_state * ngroups * self.mimo_rank
        self.in_proj = Linear(d_model, 2 * self.d_inner + 2 * n_bc + 3 * self.nheads + self.n_rotation, bias=False, **kind)
        self.dt_bias = _undecayed(_inverse_softplus_steps(self.nheads, dt_min, dt_max, dt_init_floor, **f32))
        self.B_bias = _undecayed(torch.ones(self.nheads, self.mimo_rank, d_state, **f32))
        self.C_bias = _undecayed(torch.ones(self.nheads, self.mimo_rank, d_state, **f32))
        self.B_norm, self.C_norm = RMSNorm(d_state, eps=1e-5, **kind), RMSNorm(d_state, eps=1e-5, **kind)
        if is_mimo:
            shape = (self.nheads, self.mimo_rank, headdim)
            self.mimo_x = nn.Parameter(torch.full(shape, 1.0 / self.mimo_rank, **f32))
            self.mimo_z = nn.Parameter(torch.ones(shape, **f32))
            self.mimo_o = nn.Parameter(torch.full(shape, 1.0 / self.mimo_rank, **f32))
        self.D = _undecayed(torch.ones(self.nheads, **f32))
        if learnable_init_states:
            self.init_states = _undecayed(torch.zeros(self.nheads, headdim, d_state, **f32))
        if is_outproj_norm:
            self.norm = RMSNorm(self.d_inner, eps=1e-5, norm_before_gate=True, group_size=headdim, **kind)
        self.out_proj = Linear(self.d_inner, d_model, bias=False, **kind)

    @property
    def _is_quaternion(self) -> bool:
        return self.rotation == "quaternion"

    def _check_arguments(self) -> None:
        def require(holds: bool, text: str) -> None:
            if not holds:
                raise _core.ArgumentError(f"Mamba3: {text}")

        require(self.rope_fraction in (0.5, 1.0), f"rope_fraction = {self.rope_fraction}, but must be 0.5 or 1")
        require(self.d_inner % self.headdim == 0, f"headdim = {self.headdim} does not divide d_inner = {self.d_inner}")
        require((self.d_inner // self.headdim) % self.ngroups == 0,
                f"ngroups = {self.ngroups} does not divide the {self.d_inner // self.headdim} heads (d_inner / headdim)")
        require(self.a_activation in ("heavy_tail", "softplus"),
                f"a_activation = {self.a_activation!r} is neither 'heavy_tail' nor 'softplus'")
        require(self.rotation in ("complex", "quaternion"), f"rotation = {self.rotation!r} is neither 'complex' nor 'quaternion'")
        block = 8 if self._is_quaternion and self.rope_fraction == 0.5 else 4
        require(self.d_state % block == 0, f"d_state = {self.d_state}, but must be a multiple of {block}")

    def forward(self, u: Tensor, seq_idx: OptionalTensor = None, cu_seqlens: OptionalTensor = None,
                inference_params: Any = None, *, state: State | None = None, return_state: bool = False) -> Any:
        """u [b s d] -> [b s d]. state: (angle [q h a], ssm [q h p r], k [q m h r], v [q h p]).

        With quaternions the first of them is [q h j 4]. seq_idx, cu_seqlens: packed rows.
        """
        batch, length, _ = u.shape
        limits = None if seq_idx is not None else cu_seqlens
        packed = KF.sequences(batch, length, seq_idx=seq_idx, cu_seqlens=limits, pin=u.is_cuda)
        state, cache = self._take(inference_params, state, batch)
        if state is None and hasattr(self, "init_states"):
            state = self._initial_state(batch if packed is None else packed.shape[0])
        mix = self._mix_op_by_op if self._is_quaternion else self._mix
        y, *new = mix(self.in_proj(u), state, packed)
        self._store(cache, tuple(new))
        return _result(self.out_proj(y), tuple(new), return_state)

    def _initial_state(self, count: int) -> State:
        ssm = self.init_states
        rotation = ssm.new_zeros(count, self.nheads, self.num_rope_angles)
        if self._is_quaternion:
            rotation = ssm.new_tensor([1.0, 0, 0, 0]).expand(count, self.nheads, self.num_rope_angles // 2, 4)
        return (rotation, ssm.expand(count, -1, -1, -1), ssm.new_zeros(count, self.mimo_rank, self.nheads, self.d_state),
                ssm.new_zeros(count, self.nheads, self.headdim))

    def _operands(self) -> tuple[OptionalTensor, ...]:
        """Operands of the mixer op between tokens and states."""
        mimo = (self.mimo_x, self.mimo_z, self.mimo_o) if self.is_mimo else (None, None, None)
        return (self.dt_bias, self.B_bias, self.C_bias, *mimo, self.D, self.B_norm.weight, self.C_norm.weight,
                self.norm.weight if self.is_outproj_norm else None)

    def _options(self) -> tuple[Any, ...]:
        return (self.headdim, self.ngroups, 0, self.A_floor, self.rotation_range, self.a_activation == "softplus",
                self.is_mimo, self.B_norm.eps)

    def _mix(self, tokens: Tensor, state: State | None, packed: OptionalTensor) -> tuple[Tensor, ...]:
        made: tuple[Tensor, ...] = _ops.mamba3_mixer(tokens, *self._operands(), *(state or (None,) * 4), packed,
                                                     *self._options())
        return made[:5]

    def _mix_op_by_op(self, tokens: Tensor, state: State | None, packed: OptionalTensor) -> tuple[Tensor, ...]:
        """The same by single ops, for both rotations."""
        h, p, m, g, r = self.nheads, self.headdim, self.mimo_rank, self.ngroups, self.d_state
        z, x, b, c, dt, a, lam, turn = tokens.split([h * p, h * p, m * g * r, m * g * r, h, h, h, self.n_rotation], -1)
        dt, da, gamma, carry, _ = KF.trapezoid(dt, self.dt_bias, a, lam, a_floor=self.A_floor,
                                               softplus=self.a_activation == "softplus")
        rotation, ssm, k_before, v_before = state or (None,) * 4
        x = x.unflatten(-1, (h, p))
        v = x.unsqueeze(2) * self.mimo_x.transpose(0, 1) if self.is_mimo else x.unsqueeze(2)
        (k, q), rotation = self._rotated(b.unflatten(-1, (m, g, r)), c.unflatten(-1, (m, g, r)), turn, dt, rotation, packed)
        at = _Tokens(packed)
        before = None
        if v_before is not None and k_before is not None:
            own = v_before.unsqueeze(1)
            before = (at.first(carry), own * self.mimo_x.transpose(0, 1) if self.is_mimo else own, k_before)
        y, ssm = KF.mamba3_ssd(v, k, q, da, KF.trapezoid_scale(gamma, carry, packed), gamma, self.D, initial=ssm,
                               carry=carry, before=before, sequences=packed)
        return self._gated(y, z.unflatten(-1, (h, p))), rotation, ssm, at.last(k), at.last(x)

    def _rotated(self, b: Tensor, c: Tensor, turn: Tensor, dt: Tensor, initial: OptionalTensor,
                 packed: OptionalTensor) -> tuple[list[Tensor], Tensor]:
        """B and C after norm, bias and rotation, and the rotation of the last tokens."""
        pairs = ((b, self.B_norm, self.B_bias), (c, self.C_norm, self.C_bias))
        if not self._is_quaternion:
            angle, final = KF.rotation_angles(turn, dt, initial=initial, range=self.rotation_range, sequences=packed)
            return [KF.rotate(norm(x), angle, bias, split_pairs=self.is_mimo) for x, norm, bias in pairs], final
        raw = turn.unflatten(-1, (self.nheads, -1, 3))
        each = KF.quaternion_increments(raw, dt, range=self.rotation_range)
        cum, final = KF.quaternion_cumprod(each, initial=initial, sequences=packed)
        maps = [KF.qk_norm(x, norm.weight, bias, self.nheads, eps=norm.eps) for x, norm, bias in pairs]
        return [KF.quaternion_rotate(x, cum) for x in maps], final

    def _gated(self, y: Tensor, z: Tensor) -> Tensor:
        """Gate or gated norm of each rank, and their weighted sum: y [b s m h p], z [b s h p]."""
        z = z.unsqueeze(2) * self.mimo_z.transpose(0, 1) if self.is_mimo else z.unsqueeze(2)
        y, z = y.flatten(3), z.flatten(3)
        y = self.norm(y, z) if self.is_outproj_norm else KF.gate(y, z)
        if not self.is_mimo:
            return y.squeeze(2)
        return (y.unflatten(-1, (self.nheads, self.headdim)) * self.mimo_o.transpose(0, 1)).sum(2).flatten(2)

    @torch.no_grad()
    def step(self, u: Tensor, angle_state: Tensor, ssm_state: Tensor, k_state: Tensor, v_state: Tensor,
             **kwargs: Any) -> tuple[Tensor, ...]:
        """One token, [b d] or [b 1 d]; the states are updated in place. The result has the shape of u."""
        tokens = self.in_proj(_one_token(u, "Mamba3.step"))
        states = (angle_state, ssm_state, k_state, v_state)
        if self._is_quaternion:
            y, *new = self._mix_op_by_op(tokens.unsqueeze(1), states, None)
            self._store(states, tuple(new))
            y = y.squeeze(1)
        else:
            y = _ops.mamba3_step(*states, tokens, *self._operands(), *self._options())
        return self.out_proj(y).view(u.shape), *states

    def allocate_inference_cache(self, batch_size: int, max_seqlen: int, device: Any = None,  # type: ignore[override]
                                 dtype: torch.dtype | None = None, inplace_state: Any = None, **kwargs: Any) -> State:
        """Rotation and ssm in f32, k and v in the module's type, all 0 but for learned initial states. inplace_state has no
        effect, here as in the official module."""
        weight = self.in_proj.weight
        if hasattr(self, "init_states"):
            return tuple(x.detach().clone().to(device) for x in self._initial_state(batch_size))
        device = weight.device if device is None else device
        f32: dict[str, Any] = {"device": device, "dtype": self.dt_bias.dtype}
        kind: dict[str, Any] = {"device": device, "dtype": dtype or weight.dtype}
        rotation = torch.zeros(batch_size, self.nheads, self.num_rope_angles, **f32)
        if self._is_quaternion:
            rotation = torch.tensor([1.0, 0, 0, 0], **f32).repeat(batch_size, self.nheads, self.num_rope_angles // 2, 1)
        return (rotation, torch.zeros(batch_size, self.nheads, self.headdim, self.d_state, **f32),
                torch.zeros(batch_size, self.mimo_rank, self.nheads, self.d_state, **kind),
                torch.zeros(batch_size, self.nheads, self.headdim, **kind))


class _Tokens:
    """The first and last token of each sequence of x [b s ..]."""

    def __init__(self, packed: OptionalTensor) -> None:
        self.packed = packed

    def first(self, x: Tensor) -> Tensor:
        return x[:, 0] if self.packed is None else x[self.packed[:, 0], self.packed[:, 1]]

    def last(self, x: Tensor) -> Tensor:
        return x[:, -1] if self.packed is None else x[self.packed[:, 0], self.packed[:, 2] - 1]
