"""krait::mamba1_mixer, mamba2_mixer, mamba3_mixer: everything between the projections of a block, as one op.

Convolution, step sizes, core, gate and norm run on parts of the input projection where they are. Backward recomputes what
is cheap, and writes the gradients of all parts into one tensor of the projection's shape: nothing is split, transposed or
concatenated, and only the projection, the core's output and the norm's 1/rms are kept. On a GPU a projection of bf16 is
read as it is, and what is between convolution, core and norm is bf16, too; steps, decays and states are f32.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from krait import _core
from krait.torch import kernels
from krait.torch.kernels import NORM_FIRST, SILU, SOFTPLUS, SPLIT_PAIRS, OptionalTensor
from krait.torch.ops import Dims, Narrow, Op, Views

_RAW = _core.raw_ops
Tensor = torch.Tensor


def _like(x: Tensor, *shape: int) -> Tensor:
    return torch.empty(shape, dtype=x.dtype, device=x.device)


def _conv(x: Tensor, weight: Tensor, bias: OptionalTensor, window: OptionalTensor, y: Tensor, window_out: OptionalTensor,
          sequences: OptionalTensor) -> None:
    kernels.run(_RAW["conv"], (x, weight, bias, window, y, window_out), sequences, SILU)


def _conv_backward_parts(operands: tuple[OptionalTensor, ...], g_y: tuple[Tensor, ...],
                         sequences: OptionalTensor) -> None:
    """The gradients of a convolution, whose g_y is in several parts along the channels: one call each.

    operands: x, weight, bias, window, g_window_out, g_x, g_weight, g_bias, g_window.
    """
    x, weight, bias, window, g_window_out, g_x, g_weight, g_bias, g_window = operands
    assert x is not None
    start = 0
    for part in g_y:
        part = part.flatten(2)
        end = start + part.shape[2]
        own = [None if t is None else t[..., start:end] for t in (x, g_x)]
        rows = [None if t is None else t[start:end] for t in (weight, bias, g_weight, g_bias)]
        windows = [None if t is None else t[:, start:end].contiguous() for t in (window, g_window_out)]
        made = None if g_window is None else torch.empty_like(g_window[:, start:end], memory_format=torch.contiguous_format)
        kernels.run(_RAW["conv_backward"], (own[0], rows[0], rows[1], windows[0], part, windows[1], own[1], rows[2], rows[3],
                                            made), sequences, SILU)
        if made is not None and g_window is not None:
            g_window[:, start:end] = made
        start = end


def _norm_or_gate(y: Tensor, z: Tensor, gain: OptionalTensor, out: Tensor, q: Tensor, n_groups: int, eps: float,
                  norm_first: bool) -> None:
    if gain is None:
        kernels.run(_RAW["gate"], (y, z, out))
    else:
        kernels.run(_RAW["norm"], (y, z, gain, out, q), None, NORM_FIRST if norm_first else 0, 0, n_groups, eps)


def _norm_or_gate_backward(y: Tensor, z: Tensor, gain: OptionalTensor, q: Tensor, g_out: Tensor, g_y: Tensor, g_z: Tensor,
                           g_gain: OptionalTensor, n_groups: int, eps: float, norm_first: bool) -> None:
    if gain is None:
        kernels.run(_RAW["gate_backward"], (y, z, g_out, g_y, g_z))
    else:
        kernels.run(_RAW["norm_backward"], (y, z, gain, q, g_out, g_y, g_z, g_gain), None,
                    NORM_FIRST if norm_first else 0, 0, n_groups, eps)


def _softplus_steps(dt_raw: Tensor, bias: Tensor, dt_min: float, dt_max: float) -> tuple[Tensor, Tensor]:
    """dt = clamp(softplus(raw)), and raw = dt_raw + bias."""
    raw = dt_raw + bias
    dt = F.softplus(raw)
    if dt_min > 0 or dt_max < float("inf"):
        dt.clamp_(dt_min, dt_max)
    return dt, raw


def _softplus_steps_backward(g_dt: Tensor, dt: Tensor, raw: Tensor, dt_min: float, dt_max: float) -> Tensor:
    """g_raw, in the memory of g_dt; 0 where dt is clamped, but not at a limit itself."""
    if dt_min > 0 or dt_max < float("inf"):
        free = F.softplus(raw)
        g_dt *= (free >= dt_min) & (free <= dt_max)
    return g_dt.mul_(torch.sigmoid(raw))


def _put(made: Tensor | None, value: Tensor | None) -> None:
    if made is not None:
        assert value is not None
        made.copy_(value)


class _Mixer(Op):
    takes_any_type = True
    writes_narrow = True  # y in the type of the projection, where kernels keep it

    def __init__(self, *args: Any, **rest: Any) -> None:
        super().__init__(*args, **rest)
        first = [True] + [False] * (self.n_in - 1)
        results = [self.writes_narrow and (y.is_activation or y.is_kept_narrow) for y in self.results]
        self.narrow = Narrow(first, results, first, [results[i] for i in self.kept], [results[i] for i in self.given], first)

    def _wanted(self, made: Views, i: int, like: Tensor) -> Tensor:
        """Where the gradient of operand i goes: its result, or memory that is dropped."""
        return made[i] if made[i] is not None else torch.empty_like(like, memory_format=torch.contiguous_format)


# ---- Mamba-2 ----


class Mamba2Mixer(_Mixer):
    """[z | x B C | dt] = the projection;  x B C = silu(conv(x B C));  SSD;  norm(y, z) or y silu(z).

    A = -exp(A_log), or with the option rates A_log is A itself.
    """

    def add_sizes(self, dims: Dims, options: tuple[Any, ...]) -> None:
        headdim, n_groups = options[0], options[1]
        dims["p"], dims["i"] = headdim, dims["h"] * headdim
        dims["r"] = (dims["v"] - dims["i"]) // (2 * n_groups)
        dims["e"] = options[6]

    def _check(self, dims: Dims, n_groups: int) -> None:
        width = dims["i"] + dims["v"] + dims["h"]
        if dims["f"] != width or dims["v"] != dims["i"] + 2 * n_groups * dims["r"] or dims["h"] % n_groups:
            raise _core.ShapeError(
                f"krait::mamba2_mixer: zxbcdt has {dims['f']} channels, but z, x, B, C and dt have {width}: {dims['h']} heads "
                f"of {dims['p']}, {n_groups} groups, {dims['v']} channels of the convolution")

    def _parts(self, dims: Dims, zxbcdt: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return zxbcdt.split([dims["i"], dims["v"], dims["h"]], -1)

    def _core_operands(self, dims: Dims, xbc: Tensor, n_groups: int) -> tuple[Tensor, Tensor, Tensor]:
        b, s, i, r = dims["b"], dims["s"], dims["i"], dims["r"]
        x, bb, cc = xbc.split([i, n_groups * r, n_groups * r], -1)
        return x.unflatten(-1, (dims["h"], dims["p"])), bb.unflatten(-1, (n_groups, r)), cc.unflatten(-1, (n_groups, r))

    def run_forward(self, dims: Dims, operands: Views, results: Views, sequences: OptionalTensor,
                    options: tuple[Any, ...]) -> None:
        zxbcdt, conv_weight, conv_bias, dt_bias, a_log, d, gain, initial, window = operands
        out, final, window_out, core, q = results
        headdim, n_groups, chunk_len, dt_min, dt_max, eps, norm_groups, norm_first, rates = options
        self._check(dims, n_groups)
        z, xbc_in, dt_raw = self._parts(dims, zxbcdt)
        xbc = _like(out, dims["b"], dims["s"], dims["v"])
        _conv(xbc_in, conv_weight, conv_bias, window, xbc, window_out, sequences)
        dt, _ = _softplus_steps(dt_raw, dt_bias, dt_min, dt_max)
        x, b, c = self._core_operands(dims, xbc, n_groups)
        da = dt * (a_log if rates else -a_log.exp())
        y = core.unflatten(-1, (dims["h"], headdim))
        kernels.run(_RAW["ssd"], (x, b, c, da, dt, None, d, initial, None, None, None, None, y, final), sequences, 0,
                    chunk_len)
        _norm_or_gate(core, z, gain, out, q, norm_groups, eps, norm_first)

    def run_backward(self, dims: Dims, operands: Views, kept: Views, given: Views, made: Views,
                     sequences: OptionalTensor, options: tuple[Any, ...]) -> None:
        zxbcdt, conv_weight, conv_bias, dt_bias, a_log, d, gain, initial, window = operands
        core, q = kept
        g_out, g_final, g_window_out = given
        _, g_conv_weight, g_conv_bias, g_dt_bias, g_a_log, g_d, g_gain, g_initial, g_window = made
        headdim, n_groups, chunk_len, dt_min, dt_max, eps, norm_groups, norm_first, rates = options
        h = dims["h"]
        slab = self._wanted(made, 0, zxbcdt)
        z, xbc_in, dt_raw = self._parts(dims, zxbcdt)
        g_z, g_xbc_in, g_dt_raw = self._parts(dims, slab)

        g_core = torch.empty_like(core)
        if g_out is None:
            g_core.zero_()
            g_z.zero_()
            _put(g_gain, torch.zeros_like(gain) if g_gain is not None else None)
        else:
            _norm_or_gate_backward(core, z, gain, q, g_out, g_core, g_z, g_gain, norm_groups, eps, norm_first)

        xbc = _like(core, dims["b"], dims["s"], dims["v"])
        _conv(xbc_in, conv_weight, conv_bias, window, xbc, None, sequences)
        dt, raw = _softplus_steps(dt_raw, dt_bias, dt_min, dt_max)
        x, b, c = self._core_operands(dims, xbc, n_groups)
        a = a_log if rates else -a_log.exp()
        da = dt * a
        g_x, g_b, g_c = (torch.empty(part.shape, dtype=x.dtype, device=x.device) for part in (x, b, c))
        g_da, g_dt = torch.empty_like(da), torch.empty_like(da)
        kernels.run(_RAW["ssd_backward"],
                    (x, b, c, da, dt, None, d, initial, None, None, None, g_core.unflatten(-1, (h, headdim)), g_final,
                     g_x, g_b, g_c, g_da, g_dt, None, g_d, g_initial, None, None, None), sequences, 0, chunk_len)
        of_conv = (xbc_in, conv_weight, conv_bias, window, g_window_out, g_xbc_in, g_conv_weight, g_conv_bias, g_window)
        _conv_backward_parts(of_conv, (g_x, g_b, g_c), sequences)
        if g_a_log is not None:
            torch.sum((g_da * dt).view(-1, h), 0, out=g_a_log)
            if not rates:
                g_a_log *= a
        g_raw = _softplus_steps_backward(g_dt.addcmul_(g_da, a), dt, raw, dt_min, dt_max)
        g_dt_raw.copy_(g_raw)
        if g_dt_bias is not None:
            torch.sum(g_raw.view(-1, h), 0, out=g_dt_bias)


MAMBA2_MIXER = Mamba2Mixer(
    "mamba2_mixer",
    "zxbcdt:b.s.f~ conv_weight:vk conv_bias:v? dt_bias:h A_log:h D:h? gain:i? initial:qhpr? window:qvk?",
    "y:bsi~ final:qhpr window_out:qvk core:bsi^ q:bse", keeps="core q", constant="core q", autocast="zxbcdt",
    options="int headdim, int n_groups, int chunk_len, float dt_min, float dt_max, float eps, int norm_groups, "
    "bool norm_first, bool rates")


# ---- Mamba-1 ----


class Mamba1Mixer(_Mixer):
    """[x | z] = the projection;  x = silu(conv(x));  [dt | B C] = x W_x;  dt = softplus(dt W_dt + bias);  scan, gated by z.

    The scan has kernels for f32 and f64 alone: of a projection of bf16 z is widened, and y is rounded.
    """

    writes_narrow = False

    def add_sizes(self, dims: Dims, options: tuple[Any, ...]) -> None:
        dims["i"] = dims["v"]

    def _select(self, dims: Dims, x: Tensor, x_proj: Tensor, dt_proj: Tensor, dt_bias: Tensor,
                precision: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """What x selects: the projection of x, dt and its value before softplus, B and C."""
        if dims["f"] != 2 * dims["v"] or dims["j"] != dims["l"] + 2 * dims["r"]:
            raise _core.ShapeError(
                f"krait::mamba1_mixer: xz has {dims['f']} channels and x_proj {dims['j']} rows, but {dims['v']} channels, a "
                f"dt rank of {dims['l']} and {dims['r']} states need {2 * dims['v']} and {dims['l'] + 2 * dims['r']}")
        selected = _like(x, dims["b"], dims["s"], dims["j"])
        kernels.matmul(x.flatten(0, 1), x_proj.t(), selected.flatten(0, 1), precision=precision)
        low, b, c = selected.split([dims["l"], dims["r"], dims["r"]], -1)
        raw = torch.empty_like(x)
        kernels.matmul(low.flatten(0, 1), dt_proj.t(), raw.flatten(0, 1), dt_bias, precision=precision)
        return selected, F.softplus(raw), raw, b.unsqueeze(2), c.unsqueeze(2)

    def run_forward(self, dims: Dims, operands: Views, results: Views, sequences: OptionalTensor,
                    options: tuple[Any, ...]) -> None:
        xz, conv_weight, conv_bias, x_proj, dt_proj, dt_bias, a_log, d, initial, window = operands
        y, final, window_out = results
        precision = kernels.precision_of(xz)
        x_in, z = xz.split(dims["v"], -1)
        x = _like(y, dims["b"], dims["s"], dims["v"])
        _conv(x_in, conv_weight, conv_bias, window, x, window_out, sequences)
        _, dt, _, b, c = self._select(dims, x, x_proj, dt_proj, dt_bias, precision)
        z = kernels.as_read(z, y.dtype, 2)
        kernels.run(_RAW["scan"], (x, dt, -a_log.exp(), b, c, d, z, initial, y, final), sequences, precision=precision)

    def run_backward(self, dims: Dims, operands: Views, kept: Views, given: Views, made: Views,
                     sequences: OptionalTensor, options: tuple[Any, ...]) -> None:
        xz, conv_weight, conv_bias, x_proj, dt_proj, dt_bias, a_log, d, initial, window = operands
        g_y, g_final, g_window_out = given
        _, g_conv_weight, g_conv_bias, g_x_proj, g_dt_proj, g_dt_bias, g_a_log, g_d, g_initial, g_window = made
        slab, precision = self._wanted(made, 0, xz), kernels.precision_of(xz)
        x_in, z = xz.split(dims["v"], -1)
        g_x_in, g_z = slab.split(dims["v"], -1)
        x = _like(a_log, dims["b"], dims["s"], dims["v"])
        _conv(x_in, conv_weight, conv_bias, window, x, None, sequences)
        selected, dt, raw, b, c = self._select(dims, x, x_proj, dt_proj, dt_bias, precision)
        z = kernels.as_read(z, x.dtype, 2)
        a = -a_log.exp()

        g_x, g_dt, g_gate = torch.empty_like(x), torch.empty_like(x), torch.empty_like(x)
        g_a = torch.empty_like(a)
        g_b, g_c = (torch.empty(b.shape, dtype=x.dtype, device=x.device) for _ in range(2))
        kernels.run(_RAW["scan_backward"], (x, dt, a, b, c, d, z, initial, g_y, g_final, g_x, g_dt, g_a, g_b, g_c, g_d, g_gate,
                                            g_initial), sequences, precision=precision)
        g_z.copy_(g_gate)
        _put(g_a_log, g_a * a)
        g_raw = g_dt.mul_(torch.sigmoid(raw)).flatten(0, 1)
        if g_dt_bias is not None:
            torch.sum(g_raw, 0, out=g_dt_bias)
        rows, n_low = selected.flatten(0, 1), dims["l"]
        if g_dt_proj is not None:
            kernels.matmul(g_raw.t(), rows[:, :n_low], g_dt_proj, precision=precision)
        g_selected = torch.empty_like(rows)
        kernels.matmul(g_raw, dt_proj, g_selected[:, :n_low], precision=precision)
        g_selected[:, n_low: n_low + dims["r"]] = g_b.flatten(0, 2)
        g_selected[:, n_low + dims["r"]:] = g_c.flatten(0, 2)
        if g_x_proj is not None:
            kernels.matmul(g_selected.t(), x.flatten(0, 1), g_x_proj, precision=precision)
        kernels.matmul(g_selected, x_proj, g_x.flatten(0, 1), adds=True, precision=precision)
        kernels.run(_RAW["conv_backward"],
                    (x_in, conv_weight, conv_bias, window, g_x, g_window_out, g_x_in, g_conv_weight, g_conv_bias, g_window),
                    sequences, SILU)


MAMBA1_MIXER = Mamba1Mixer("mamba1_mixer",
            "xz:b.s.f~ conv_weight:vk conv_bias:v? x_proj:jv dt_proj:vl dt_bias:v A_log:vr D:v? initial:qvr? window:qvk?",
            "y:bsv~ final:qvr window_out:qvk", autocast="xz")


# ---- Mamba-3 ----


class _Spans:
    """First and last tokens of sequences, as indices into [b s]."""

    def __init__(self, dims: Dims, sequences: OptionalTensor, device: torch.device) -> None:
        self.rows = sequences is None
        self.shape = (dims["b"], dims["s"])
        if sequences is not None:
            own = sequences.to(device, non_blocking=True)
            self.first = own[:, 0] * dims["s"] + own[:, 1]
            self.last = own[:, 0] * dims["s"] + own[:, 2] - 1

    def at_first(self, x: Tensor) -> Tensor:
        """[q ..], a view where each row is a sequence."""
        return x[:, 0] if self.rows else x.flatten(0, 1)[self.first]

    def at_last(self, x: Tensor) -> Tensor:
        return x[:, -1] if self.rows else x.flatten(0, 1)[self.last]

    def add_at_first(self, x: Tensor, value: Tensor) -> None:
        x[:, 0].add_(value) if self.rows else x.view(-1, *x.shape[2:]).index_add_(0, self.first, value.to(x.dtype))

    def add_at_last(self, x: Tensor, value: Tensor) -> None:
        x[:, -1].add_(value) if self.rows else x.view(-1, *x.shape[2:]).index_add_(0, self.last, value.to(x.dtype))

    def next_token(self, x: Tensor) -> Tensor:
        """x of the next token of the sequence, 0 behind the last."""
        moved = torch.zeros_like(x)
        moved[:, :-1] = x[:, 1:]
        if not self.rows:
            moved.view(-1, *x.shape[2:])[self.last] = 0
        return moved

    def token_before(self, x: Tensor) -> Tensor:
        """x of the token before, 0 before the first."""
        moved = torch.zeros_like(x)
        moved[:, 1:] = x[:, :-1]
        if not self.rows:
            moved.view(-1, *x.shape[2:])[self.first] = 0
        return moved


class _Mamba3Call:
    """A call of the mixer: sizes, operands by name, and what forward and backward compute alike."""

    names = ("tokens", "dt_bias", "b_bias", "c_bias", "mimo_x", "mimo_z", "mimo_o", "d", "b_gain", "c_gain", "gain", "angle",
             "ssm", "k", "v")

    def __init__(self, dims: Dims, operands: Views, sequences: OptionalTensor, options: tuple[Any, ...]) -> None:
        self.dims, self.sequences = dims, sequences
        self.o = dict(zip(self.names, operands))
        (self.headdim, self.n_groups, self.chunk_len, self.a_floor, self.range, self.softplus, self.split_pairs,
         self.eps) = options
        self.b, self.s, self.h, self.p = dims["b"], dims["s"], dims["h"], self.headdim
        self.m, self.g, self.r, self.i = dims["m"], self.n_groups, dims["r"], dims["i"]
        self.is_mimo = self.o["mimo_x"] is not None
        self.spans = _Spans(dims, sequences, self.o["tokens"].device)
        self._check()
        self.z, self.x, self.b_raw, self.c_raw, *steps = self.parts(self.o["tokens"])
        self.dtype, self.narrow = self.o["dt_bias"].dtype, self.o["tokens"].dtype
        self.rotates = self.narrow is not self.dtype  # does the core rotate B and C? where it takes bf16
        if self.rotates:  # for kernels that take f32 alone, in one tensor
            n = 3 * self.h + self.dims["a"]
            steps = self.o["tokens"][..., -n:].to(self.dtype).split([self.h, self.h, self.h, self.dims["a"]], -1)
        self.dt_raw, self.a_raw, self.l_raw, self.theta = steps
        self.trapezoid_flags = SOFTPLUS if self.softplus else 0
        self.limits = (1, 1e-5, 1.0, self.a_floor, 0.0, float("inf"))

    def _check(self) -> None:
        width = 2 * self.i + 2 * self.m * self.g * self.r + 3 * self.h + self.dims["a"]
        given = [self.o[name] is None for name in ("ssm", "k", "v")]
        if self.dims["f"] != width or self.dims["a"] < 1 or self.h % self.g:
            raise _core.ShapeError(
                f"krait::mamba3_mixer: tokens has {self.dims['f']} channels, but z, x, B, C, dt, A, lambda and angles have "
                f"{width}: {self.h} heads of {self.p}, {self.g} groups, rank {self.m}, {self.r} states, {self.dims['a']} angles")
        if len(set(given)) > 1:
            raise _core.ArgumentError("krait::mamba3_mixer: ssm, k and v are given in part; give all three or none")

    def parts(self, slab: Tensor) -> tuple[Tensor, ...]:
        mgr, h = self.m * self.g * self.r, self.h
        return slab.split([self.i, self.i, mgr, mgr, h, h, h, self.dims["a"]], -1)

    def new(self, *shape: int, narrow: bool = False) -> Tensor:
        return torch.empty(shape, dtype=self.narrow if narrow else self.dtype, device=self.o["tokens"].device)

    def product(self, x: Tensor, y: Tensor) -> Tensor:
        """x y, broadcast, of the type of the projection."""
        made = torch.empty(torch.broadcast_shapes(x.shape, y.shape), dtype=self.narrow, device=x.device)
        return torch.mul(x, y, out=made)

    def steps(self) -> None:
        h = self.h
        self.dt, self.da, self.gamma, self.carry = (self.new(self.b, self.s, h) for _ in range(4))
        kernels.run(_RAW["trapezoid"], (self.dt_raw, self.o["dt_bias"], self.a_raw, self.l_raw, self.dt, self.da, self.gamma,
                                        self.carry, None), None, self.trapezoid_flags, 0, *self.limits)
        self.scale = self.gamma + self.spans.next_token(self.carry)

    def angles(self, final: Tensor | None) -> None:
        self.phi = self.new(self.b, self.s, self.h, self.dims["a"])
        kernels.run(_RAW["angles"], (self.theta, self.dt, self.o["angle"], self.phi, final), self.sequences, 0, self.chunk_len,
                    1, 1e-5, self.range)

    def normed(self, raw: Tensor, gain: Tensor) -> tuple[Tensor, Tensor]:
        """B or C after its norm [b s m g r], and 1/rms."""
        n = self.m * self.g
        y, q = self.new(self.b, self.s, self.m, self.g, self.r, narrow=self.rotates), self.new(self.b, self.s, n)
        kernels.run(_RAW["norm"], (raw, None, gain.repeat(n), y.flatten(2), q), None, 0, 0, n, self.eps)
        return y, q

    def rotated(self, normed: Tensor, bias: Tensor) -> Tensor:
        y = self.new(self.b, self.s, self.m, self.h, self.r, narrow=True)
        kernels.run(_RAW["rotate"], (normed, bias, self.phi, y), None, self.rotate_flags)
        return y

    def maps(self) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """B and C after their norms, each with 1/rms."""
        return self.normed(self.b_raw, self.o["b_gain"]), self.normed(self.c_raw, self.o["c_gain"])

    def last_key(self, b_normed: Tensor) -> tuple[Tensor, Tensor]:
        """Operands of the rotation of the last token of each sequence: B [q 1 m g r] and angles [q 1 h a]."""
        return (self.spans.at_last(b_normed).to(self.dtype).unsqueeze(1).contiguous(),
                self.spans.at_last(self.phi).unsqueeze(1).contiguous())

    @property
    def rotary(self) -> tuple[Tensor, ...]:
        """What the core takes more where it rotates."""
        return (self.phi, self.o["b_bias"], self.o["c_bias"]) if self.rotates else ()

    @property
    def rotate_flags(self) -> int:
        return SPLIT_PAIRS if self.split_pairs else 0

    def values(self) -> Tensor:
        x = self.x.unflatten(-1, (self.h, self.p)).unsqueeze(2)
        return self.product(x, self.by_rank(self.o["mimo_x"])) if self.is_mimo else x

    @staticmethod
    def by_rank(x_hmp: Tensor) -> Tensor:
        return x_hmp.transpose(0, 1).contiguous()  # [m h p]

    def boundary(self) -> tuple[OptionalTensor, OptionalTensor, OptionalTensor]:
        """The token before the first: carry of the first token, its v [q m h p] and k [q m h r]."""
        if self.o["v"] is None:
            return None, None, None
        v = self.o["v"].unsqueeze(1)
        v = v * self.by_rank(self.o["mimo_x"]) if self.is_mimo else v
        return self.spans.at_first(self.carry).contiguous(), v.contiguous(), self.o["k"]

    def gates(self) -> Tensor:
        """z for each rank [b s m i]."""
        if not self.is_mimo:
            return self.z
        z = self.z.unflatten(-1, (self.h, self.p)).unsqueeze(2)
        return self.product(z, self.by_rank(self.o["mimo_z"])).flatten(3)


class Mamba3Mixer(_Mixer):
    """[z x B C dt A lambda angles] = the projection;  norm, bias and rotation of B and C;  SSD by the trapezoidal rule;
    gate or gated norm of each rank, and their weighted sum."""

    def add_sizes(self, dims: Dims, options: tuple[Any, ...]) -> None:
        headdim, n_groups = options[0], options[1]
        dims["p"], dims["i"] = headdim, dims["h"] * headdim
        dims["a"] = dims["f"] - 2 * dims["i"] - 2 * dims["m"] * n_groups * dims["r"] - 3 * dims["h"]
        dims["e"] = dims["m"] * dims["h"]

    def run_forward(self, dims: Dims, operands: Views, results: Views, sequences: OptionalTensor,
                    options: tuple[Any, ...]) -> None:
        out, angle_out, ssm_out, k_out, v_out, core, q = results
        c = _Mamba3Call(dims, operands, sequences, options)
        c.steps()
        c.angles(angle_out)
        (k, _), (queries, _) = c.maps()
        if c.rotates:
            last, angle = c.last_key(k)
            kernels.run(_RAW["rotate"], (last, c.o["b_bias"], angle, k_out.unsqueeze(1)), None, c.rotate_flags)
        else:
            k, queries = c.rotated(k, c.o["b_bias"]), c.rotated(queries, c.o["c_bias"])
            k_out.copy_(c.spans.at_last(k))
        kernels.run(_RAW["ssd_rotary" if c.rotates else "ssd"],
                    (c.values(), k, queries, c.da, c.scale, c.gamma, c.o["d"], c.o["ssm"], c.carry, *c.boundary(), *c.rotary,
                     core, ssm_out), sequences, c.rotate_flags if c.rotates else 0, c.chunk_len)
        v_out.copy_(c.spans.at_last(c.x).unflatten(-1, (c.h, c.p)))
        self._finish(c, core, q, out)

    def _finish(self, c: _Mamba3Call, core: Tensor, q: Tensor, out: Tensor) -> None:
        if not c.is_mimo:
            _norm_or_gate(core.view(out.shape), c.z, c.o["gain"], out, q, c.h, c.eps, True)
            return
        gated = self._gated(c, core, q, c.gates())
        out.view(c.b, c.s, c.h, c.p).copy_((gated * c.by_rank(c.o["mimo_o"])).sum(2))

    def _gated(self, c: _Mamba3Call, core: Tensor, q: Tensor, z: Tensor) -> Tensor:
        """Each rank after its norm and gate [b s m h p]."""
        gated = torch.empty_like(core)
        _norm_or_gate(core.flatten(3), z, c.o["gain"], gated.flatten(3), q.view(c.b, c.s, c.m, c.h), c.h, c.eps, True)
        return gated

    def _finish_backward(self, c: _Mamba3Call, core: Tensor, q: Tensor, g_out: Tensor, g_core: Tensor, g_z: Tensor,
                         g: dict[str, OptionalTensor]) -> None:
        if not c.is_mimo:
            _norm_or_gate_backward(core.view(g_out.shape), c.z, c.o["gain"], q, g_out, g_core.view(g_out.shape), g_z,
                                   g["gain"], c.h, c.eps, True)
            return
        z = c.gates()
        g_out = g_out.view(c.b, c.s, 1, c.h, c.p)
        if g["mimo_o"] is not None:
            g["mimo_o"].copy_((self._gated(c, core, torch.empty_like(q), z) * g_out).sum((0, 1)).transpose(0, 1))
        g_gated = c.product(g_out, c.by_rank(c.o["mimo_o"])).flatten(3)
        g_gates = torch.empty_like(z)
        _norm_or_gate_backward(core.flatten(3), z, c.o["gain"], q.view(c.b, c.s, c.m, c.h), g_gated, g_core.flatten(3),
                               g_gates, g["gain"], c.h, c.eps, True)
        g_gates = g_gates.view(core.shape)
        if g["mimo_z"] is not None:
            own = c.z.unflatten(-1, (c.h, c.p)).unsqueeze(2)
            g["mimo_z"].copy_((g_gates * own).sum((0, 1)).transpose(0, 1))
        g_z.copy_((g_gates * c.by_rank(c.o["mimo_z"])).sum(2).flatten(2))

    def run_backward(self, dims: Dims, operands: Views, kept: Views, given: Views, made: Views,
                     sequences: OptionalTensor, options: tuple[Any, ...]) -> None:
        core, q = kept
        g_out, g_angle_out, g_ssm_out, g_k_out, g_v_out = given
        c = _Mamba3Call(dims, operands, sequences, options)
        g = dict(zip(c.names, made))
        slab = self._wanted(made, 0, c.o["tokens"])
        g_z, g_x, g_b_raw, g_c_raw, g_dt_raw, g_a_raw, g_l_raw, g_theta = c.parts(slab)
        g_core = torch.empty_like(core)
        if g_out is None:
            g_core.zero_()
            g_z.zero_()
            for name in ("gain", "mimo_z", "mimo_o"):
                if g[name] is not None:
                    g[name].zero_()
        else:
            self._finish_backward(c, core, q, g_out, g_core, g_z, g)

        c.steps()
        c.angles(None)
        (b_normed, b_q), (c_normed, c_q) = c.maps()
        g_phi, k, queries = torch.empty_like(c.phi), b_normed, c_normed
        if not c.rotates:
            k, queries = c.rotated(k, c.o["b_bias"]), c.rotated(queries, c.o["c_bias"])
        grads = self._core_backward(c, k, queries, g_core, g_ssm_out, g, g_phi)
        g_v, g_k, g_c, g_da, g_scale, g_gamma, g_boundary = grads
        self._values_backward(c, g_v, g_v_out, g_x, g)
        if c.rotates:
            if g_k_out is not None:
                self._last_key_backward(c, b_normed, g_k_out, g_k, g_phi, g)
        else:
            if g_k_out is not None:
                c.spans.add_at_last(g_k, g_k_out)
            g_k = self._rotate_backward(c, b_normed, "b", g_k, g_phi, 0, g)
            g_c = self._rotate_backward(c, c_normed, "c", g_c, g_phi, kernels.ACCUMULATE, g)
        self._norm_backward(c, b_q, c.b_raw, "b", g_k, g_b_raw, g)
        self._norm_backward(c, c_q, c.c_raw, "c", g_c, g_c_raw, g)

        g_dt, theta_made = torch.empty_like(c.dt), c.new(c.b, c.s, dims["a"])
        kernels.run(_RAW["angles_backward"], (c.theta, c.dt, g_phi, g_angle_out, theta_made, g_dt, g["angle"]), sequences, 0,
                    0, 1, 1e-5, c.range)
        g_theta.copy_(theta_made)
        g_carry = c.spans.token_before(g_scale)
        if g_boundary is not None:
            c.spans.add_at_first(g_carry, g_boundary)
        raws = [c.new(c.b, c.s, c.h) for _ in range(3)]
        kernels.run(_RAW["trapezoid_backward"],
                    (c.dt_raw, c.o["dt_bias"], c.a_raw, c.l_raw, g_dt, g_da, g_gamma.add_(g_scale), g_carry, None, raws[0],
                     g["dt_bias"], raws[1], raws[2]), None, c.trapezoid_flags, 0, *c.limits)
        for part, raw in zip((g_dt_raw, g_a_raw, g_l_raw), raws):
            part.copy_(raw)

    def _core_backward(self, c: _Mamba3Call, k: Tensor, queries: Tensor, g_core: Tensor, g_ssm_out: OptionalTensor,
                       g: dict[str, OptionalTensor], g_phi: Tensor) -> tuple[Any, ...]:
        v = c.values()
        g_v = torch.empty(v.shape, dtype=v.dtype, device=v.device)
        g_k, g_c = c.new(*k.shape), c.new(*k.shape)  # f32, as the gradients of rotations are read
        g_da, g_scale, g_gamma = (torch.empty_like(c.da) for _ in range(3))
        boundary = c.boundary()
        g_boundary = [None if t is None else torch.empty_like(t) for t in boundary]
        g_rotary = (g_phi, g["b_bias"], g["c_bias"]) if c.rotates else ()
        kernels.run(_RAW["ssd_rotary_backward" if c.rotates else "ssd_backward"],
                    (v, k, queries, c.da, c.scale, c.gamma, c.o["d"], c.o["ssm"], *boundary, *c.rotary, g_core, g_ssm_out, g_v,
                     g_k, g_c, g_da, g_scale, g_gamma, g["d"], g["ssm"], *g_boundary, *g_rotary), c.sequences,
                    c.rotate_flags if c.rotates else 0, c.chunk_len)
        if g_boundary[1] is not None:
            _put(g["k"], g_boundary[2])
            if g["v"] is not None:
                before = g_boundary[1] * c.by_rank(c.o["mimo_x"]) if c.is_mimo else g_boundary[1]
                g["v"].copy_(before.sum(1))
        if g["mimo_x"] is not None:
            x = c.x.unflatten(-1, (c.h, c.p)).unsqueeze(2)
            total = (g_v * x).sum((0, 1))
            if g_boundary[1] is not None:
                total += (g_boundary[1] * c.o["v"].unsqueeze(1)).sum(0)
            g["mimo_x"].copy_(total.transpose(0, 1))
        return g_v, g_k, g_c, g_da, g_scale, g_gamma, g_boundary[0]

    def _values_backward(self, c: _Mamba3Call, g_v: Tensor, g_v_out: OptionalTensor, g_x: Tensor,
                         g: dict[str, OptionalTensor]) -> None:
        total = (g_v * c.by_rank(c.o["mimo_x"])).sum(2) if c.is_mimo else g_v.squeeze(2)
        if g_v_out is not None:
            c.spans.add_at_last(total, g_v_out)
        g_x.copy_(total.flatten(2))

    def _rotate_backward(self, c: _Mamba3Call, normed: Tensor, which: str, g_rotated: Tensor, g_phi: Tensor, flags: int,
                         g: dict[str, OptionalTensor]) -> Tensor:
        """B or C: from the gradient of its rotated rows to those of bias and angles, and of the rows before, returned."""
        g_normed = torch.empty_like(normed)
        kernels.run(_RAW["rotate_backward"], (normed, c.o[which + "_bias"], c.phi, g_rotated, g_normed, g[which + "_bias"],
                                              g_phi), None, flags | c.rotate_flags)
        return g_normed

    def _last_key_backward(self, c: _Mamba3Call, b_normed: Tensor, g_k_out: Tensor, g_b: Tensor, g_phi: Tensor,
                           g: dict[str, OptionalTensor]) -> None:
        """Adds the gradients of the last rotated B of each sequence to those of B, its bias and the angles."""
        x, angle = c.last_key(b_normed)
        g_x, g_angle = torch.empty_like(x), torch.empty_like(angle)
        g_bias = None if g["b_bias"] is None else torch.empty_like(c.o["b_bias"])
        kernels.run(_RAW["rotate_backward"], (x, c.o["b_bias"], angle, g_k_out.unsqueeze(1), g_x, g_bias, g_angle), None,
                    c.rotate_flags)
        c.spans.add_at_last(g_b, g_x.squeeze(1))
        c.spans.add_at_last(g_phi, g_angle.squeeze(1))
        if g["b_bias"] is not None and g_bias is not None:
            g["b_bias"].add_(g_bias)

    def _norm_backward(self, c: _Mamba3Call, q: Tensor, raw: Tensor, which: str, g_normed: Tensor, g_raw: Tensor,
                       g: dict[str, OptionalTensor]) -> None:
        """B or C: from the gradient behind its norm to those of gain and projection."""
        n, gain = c.m * c.g, c.o[which + "_gain"]
        g_gain = None if g[which + "_gain"] is None else c.new(n * c.r)
        kernels.run(_RAW["norm_backward"], (raw, None, gain.repeat(n), q, g_normed.flatten(2), g_raw, None, g_gain), None, 0, 0,
                    n, c.eps)
        if g_gain is not None:
            _put(g[which + "_gain"], g_gain.view(n, c.r).sum(0))


MAMBA3_MIXER = Mamba3Mixer(
    "mamba3_mixer",
    "tokens:b.s.f~ dt_bias:h B_bias:hmr C_bias:hmr mimo_x:hmp? mimo_z:hmp? mimo_o:hmp? D:h? B_gain:r C_gain:r gain:i? "
    "angle:qha? ssm:qhpr? k:qmhr? v:qhp?",
    "y:bsi~ angle_out:qha ssm_out:qhpr k_out:qmhr v_out:qhp core:bsmhp^ q:bse", keeps="core q", constant="core q",
    autocast="tokens", options="int headdim, int n_groups, int chunk_len, float a_floor, float range, bool softplus, "
    "bool split_pairs, float eps")
