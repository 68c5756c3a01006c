"""Mamba, Mamba2 and Mamba3: splits, steps, packed rows, names, initial values, compilers, and what is refused."""

from __future__ import annotations

import inspect
import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import krait  # noqa: E402
import krait.torch as kt  # noqa: E402
from torch_cases import assert_close, each_device  # noqa: E402

SMALL: dict[str, Any] = {
    "mamba": lambda **o: kt.Mamba(32, **o),
    "mamba2": lambda **o: kt.Mamba2(32, d_state=16, headdim=8, ngroups=2, **o),
    "mamba2_mlp_channels": lambda **o: kt.Mamba2(32, d_state=16, headdim=8, d_ssm=32, D_has_hdim=True, **o),
    "mamba2_gate_limits": lambda **o: kt.Mamba2(32, d_state=16, headdim=8, rmsnorm=False, dt_limit=(0.01, 0.05), **o),
    "mamba2_learned_init": lambda **o: kt.Mamba2(32, d_state=16, headdim=8, learnable_init_states=True, **o),
    "mamba3": lambda **o: kt.Mamba3(32, d_state=16, headdim=8, **o),
    "mamba3_softplus": lambda **o: kt.Mamba3(32, d_state=16, headdim=8, a_activation="softplus", rotation_range=2.0, **o),
    "mamba3_mimo_norm": lambda **o: kt.Mamba3(32, d_state=16, headdim=8, ngroups=2, is_mimo=True, is_outproj_norm=True, **o),
    "mamba3_quaternion": lambda **o: kt.Mamba3(32, d_state=16, headdim=8, is_mimo=True, rotation="quaternion", **o),
    "mamba3_learned_init": lambda **o: kt.Mamba3(32, d_state=16, headdim=8, learnable_init_states=True, **o),
}
NAMES = sorted(SMALL)


def made(name: str, **options: Any) -> Any:
    """A block whose parameters are all random, the same on each device."""
    torch.manual_seed(3)
    device = options.pop("device", "cpu")
    block = SMALL[name](**options)
    with torch.no_grad():
        for p in block.parameters():
            p.add_(torch.randn_like(p) * 0.1)
    return block.to(device)


def tokens(*shape: int, dtype: Any = torch.float64, device: str = "cpu") -> Any:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(5)).to(device)


@each_device
@pytest.mark.parametrize("name", NAMES)
def test_a_sequence_may_be_cut_anywhere(name: str, device: str) -> None:
    block, u = made(name, device=device, dtype=torch.float64), tokens(2, 11, 32, device=device)
    whole, state = block(u, return_state=True)
    for cut in (1, 4, 10):
        head, between = block(u[:, :cut], return_state=True)
        tail, final = block(u[:, cut:], state=between, return_state=True)
        assert_close(torch.cat([head, tail], 1), whole, 1e-13, f"cut at {cut}")
        for i, (a, b) in enumerate(zip(final, state)):
            assert_close(a, b, 1e-12, f"cut at {cut}, state {i}")


@each_device
@pytest.mark.parametrize("name", NAMES)
def test_gradients_pass_through_a_cut(name: str, device: str) -> None:
    block, u = made(name, device=device).double(), tokens(1, 9, 32, device=device)
    block(u).square().sum().backward()
    wanted = {key: p.grad.clone() for key, p in block.named_parameters()}
    block.zero_grad()
    head, between = block(u[:, :4], return_state=True)
    tail = block(u[:, 4:], state=between)
    (head.square().sum() + tail.square().sum()).backward()
    for key, p in block.named_parameters():
        assert_close(p.grad, wanted[key], 1e-10, key)  # f64; sums over two pieces


@each_device
@pytest.mark.parametrize("name", NAMES)
def test_steps_and_cache(name: str, device: str) -> None:
    block, u = made(name, device=device, dtype=torch.float64), tokens(2, 7, 32, device=device)
    whole, state = block(u, return_state=True)
    cache = block.allocate_inference_cache(2, 7)
    rows = [block.step(u[:, t: t + 1], *cache)[0] for t in range(7)]
    assert_close(torch.cat(rows, 1), whole, 1e-12, "steps")
    for i, (a, b) in enumerate(zip(cache, state)):
        assert_close(a, b, 1e-12, f"state {i}")
    block.layer_idx = 0
    params = kt.InferenceParams(7, 2)
    first = block(u[:, :6], inference_params=params)
    params.seqlen_offset = 6
    assert_close(torch.cat([first, block(u[:, 6:], inference_params=params)], 1), whole, 1e-12, "inference_params")


@each_device
@pytest.mark.parametrize("name", NAMES)
def test_packed_rows_are_separate_sequences(name: str, device: str) -> None:
    block, u = made(name, device=device, dtype=torch.float64), tokens(1, 11, 32, device=device)
    limits = torch.tensor([0, 3, 4, 11])
    packed, states = block(u, cu_seqlens=limits, return_state=True)
    index = torch.repeat_interleave(torch.arange(3), limits.diff())[None]
    assert torch.equal(packed, block(u, seq_idx=index))
    for i in range(3):
        y, state = block(u[:, limits[i]: limits[i + 1]], return_state=True)
        assert_close(packed[:, limits[i]: limits[i + 1]], y, 1e-13, f"sequence {i}")
        for j, part in enumerate(state):
            assert_close(states[j][i: i + 1], part, 1e-13, f"sequence {i}, state {j}")


@each_device
@pytest.mark.parametrize("name", ["mamba3", "mamba3_softplus", "mamba3_mimo_norm"])
def test_the_mixer_is_the_same_as_its_ops(name: str, device: str) -> None:
    block, u = made(name, device=device, dtype=torch.float64), tokens(2, 9, 32, device=device)
    state = block(u, return_state=True)[1]
    fused = block._mix(block.in_proj(u), state, None)
    single = block._mix_op_by_op(block.in_proj(u), state, None)
    for i, (a, b) in enumerate(zip(fused, single)):
        assert_close(a, b, 1e-13, f"result {i}")


@each_device
@pytest.mark.parametrize("name", [n for n in NAMES if n not in ("mamba2_mlp_channels",)])
def test_f32_blocks_copy_nothing(name: str, device: str) -> None:
    block, u = made(name, device=device), tokens(2, 9, 32, device=device, dtype=torch.float32).requires_grad_()
    kt.copies(reset=True)
    block(u).backward(torch.ones(2, 9, 32, device=device))
    if "quaternion" not in name and "learned" not in name:  # views of parameters and heads, which are not row-major
        assert kt.copies() == 0


def test_bf16_blocks_run_on_the_cpu() -> None:
    for name in ("mamba", "mamba2", "mamba3", "mamba3_mimo_norm"):
        block = made(name).to(torch.bfloat16)
        wide = made(name).to(torch.bfloat16).float()
        u = tokens(1, 6, 32, dtype=torch.bfloat16)
        assert_close(block(u), wide(u.float()), 0.03, name)  # products rounded to 8 bits
        cache = block.allocate_inference_cache(1, 0)
        rows = torch.cat([block.step(u[:, t: t + 1], *cache)[0] for t in range(6)], 1)
        assert_close(rows, wide(u.float()), 0.1, f"{name}, steps")  # and states


# ---- names and initial values, as of the official package (shapes for d_model 768) ----

OFFICIAL = {
    "Mamba": {"A_log": (1536, 16), "D": (1536,), "in_proj.weight": (3072, 768), "conv1d.weight": (1536, 1, 4),
              "conv1d.bias": (1536,), "x_proj.weight": (80, 1536), "dt_proj.weight": (1536, 48), "dt_proj.bias": (1536,),
              "out_proj.weight": (768, 1536)},
    "Mamba2": {"dt_bias": (24,), "A_log": (24,), "D": (24,), "in_proj.weight": (3352, 768), "conv1d.weight": (1792, 1, 4),
               "conv1d.bias": (1792,), "norm.weight": (1536,), "out_proj.weight": (768, 1536)},
    "Mamba3": {"dt_bias": (24,), "B_bias": (24, 1, 128), "C_bias": (24, 1, 128), "D": (24,), "in_proj.weight": (3432, 768),
               "B_norm.weight": (128,), "C_norm.weight": (128,), "out_proj.weight": (768, 1536)},
}
ARGUMENTS = {
    "Mamba": "d_model d_state d_conv expand dt_rank dt_min dt_max dt_init dt_scale dt_init_floor conv_bias bias use_fast_path "
             "layer_idx device dtype",
    "Mamba2": "d_model d_state d_conv conv_init expand headdim d_ssm ngroups A_init_range D_has_hdim rmsnorm "
              "norm_before_gate dt_min dt_max dt_init_floor dt_limit bias conv_bias chunk_size use_mem_eff_path layer_idx "
              "process_group sequence_parallel device dtype",
}


@pytest.mark.parametrize("name", sorted(OFFICIAL))
def test_names_and_shapes_of_the_state_dict(name: str) -> None:
    state = getattr(kt, name)(768).state_dict()
    assert {key: tuple(x.shape) for key, x in state.items()} == OFFICIAL[name]
    assert list(state) == list(OFFICIAL[name])


def test_names_of_mimo_parameters() -> None:
    state = kt.Mamba3(768, is_mimo=True, is_outproj_norm=True).state_dict()
    assert list(state) == ["dt_bias", "B_bias", "C_bias", "mimo_x", "mimo_z", "mimo_o", "D", "in_proj.weight", "B_norm.weight",
                           "C_norm.weight", "norm.weight", "out_proj.weight"]
    assert tuple(state["in_proj.weight"].shape) == (4200, 768) and tuple(state["mimo_x"].shape) == (24, 4, 64)


@pytest.mark.parametrize("name", sorted(ARGUMENTS))
def test_arguments(name: str) -> None:
    own = [p.name for p in inspect.signature(getattr(kt, name)).parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert own == ARGUMENTS[name].split()


def test_initial_values() -> None:
    torch.manual_seed(0)
    block = kt.Mamba2(64, headdim=16, A_init_range=(2, 3), dt_min=0.01, dt_max=0.02)
    rates, dt = block.A_log.exp(), torch.nn.functional.softplus(block.dt_bias)
    assert bool((rates >= 2).all() and (rates <= 3).all() and (dt > 0.0099).all() and (dt < 0.0201).all())
    assert bool((block.D == 1).all() and (block.norm.weight == 1).all())
    first = kt.Mamba(64)
    assert_close(first.A_log.exp()[0], torch.arange(1.0, 17.0), 1e-6, "rates")
    assert first.dt_proj.bias._no_reinit and first.dt_rank == math.ceil(64 / 16)
    third = kt.Mamba3(64, headdim=16, is_mimo=True, mimo_rank=2)
    assert bool((third.mimo_x == 0.5).all() and (third.mimo_z == 1).all() and (third.B_bias == 1).all())
    for module, names in ((block, "A_log D dt_bias"), (first, "A_log D"), (third, "D dt_bias")):
        for name in names.split():
            assert getattr(module, name)._no_weight_decay
    half = kt.Mamba3(64, headdim=16, dtype=torch.bfloat16)
    assert half.in_proj.weight.dtype == torch.bfloat16 and half.dt_bias.dtype == torch.float32


# ---- compilers ----


@each_device
def test_compiled_block_equals_eager(device: str) -> None:
    """One graph, with its gradient."""
    block = made("mamba2", device=device)
    u = tokens(1, 12, 32, dtype=torch.float32, device=device).requires_grad_()
    wanted = block(u)
    wanted.square().sum().backward()
    gradients = [u.grad.clone(), *(p.grad.clone() for p in block.parameters())]
    u.grad = None
    block.zero_grad()
    got = torch.compile(block, fullgraph=True)(u)
    got.square().sum().backward()
    assert_close(got, wanted, 1e-5, "result")  # f32; a compiler may contract
    for i, (a, b) in enumerate(zip([u.grad, *(p.grad for p in block.parameters())], gradients)):
        assert_close(a, b, 1e-4, f"gradient {i}")


@pytest.mark.parametrize("name", ["mamba", "mamba2", "mamba3_mimo_norm"])
def test_export_keeps_the_op(name: str) -> None:
    block, u = made(name), tokens(2, 9, 32, dtype=torch.float32)
    exported = torch.export.export(block, (u,))
    assert any("krait" in str(node.target) and "mixer" in str(node.target) for node in exported.graph.nodes)
    assert torch.equal(exported.module()(u), block(u))


def test_meta_tensors_have_shapes() -> None:
    with torch.device("meta"):
        block = kt.Mamba2(64, headdim=16)
        y, (window, ssm) = block(torch.empty(3, 10, 64), return_state=True)
    assert tuple(y.shape) == (3, 10, 64) and tuple(window.shape) == (3, 384, 4) and tuple(ssm.shape) == (3, 8, 16, 128)


# ---- errors ----


def test_what_modules_refuse() -> None:
    with pytest.raises(krait.ArgumentError, match="Mamba2: headdim = 48 does not divide d_ssm = 64"):
        kt.Mamba2(32, headdim=48)
    with pytest.raises(krait.ArgumentError, match="Mamba3: rope_fraction = 0.25, but must be 0.5 or 1"):
        kt.Mamba3(32, headdim=8, rope_fraction=0.25)
    with pytest.raises(krait.UnsupportedError, match="process_group is given"):
        kt.Mamba2(32, headdim=8, process_group=object())
    block, u = kt.Mamba2(32, d_state=16, headdim=8), tokens(1, 4, 32, dtype=torch.float32)
    with pytest.raises(krait.ArgumentError, match="the module has no layer_idx"):
        block(u, inference_params=kt.InferenceParams(4, 1))
    with pytest.raises(krait.ShapeError, match="a step takes one token"):
        block.step(u, *block.allocate_inference_cache(1, 4))
    state = block(u, return_state=True)[1]
    with pytest.raises(krait.ShapeError, match="axis q of"):
        block(torch.cat([u, u]), state=state)
