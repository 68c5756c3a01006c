"""Models under the official names: weights of the official package, its constructors, and generation."""

from __future__ import annotations

import json
import os
import pathlib

import pytest

torch = pytest.importorskip("torch")
safetensors_torch = pytest.importorskip("safetensors.torch")

import torch.nn.functional as F  # noqa: E402

from compat_cases import Random, assert_close, compare  # noqa: E402

from krait._compat import generation, hub, language_model, references  # noqa: E402
from krait._compat.mamba2_simple import Mamba2Simple  # noqa: E402

ROOT = pathlib.Path(os.environ.get("KR_SOURCE") or pathlib.Path(__file__).resolve().parents[3])
GOLDEN = ROOT / "tests" / "golden" / "official_lm"
NAMES = sorted(f.name for f in GOLDEN.iterdir() if f.is_dir())
SEED = 5


def _load(name):
    model = language_model.MambaLMHeadModel.from_pretrained(str(GOLDEN / name))
    return model, safetensors_torch.load_file(GOLDEN / name / "io.safetensors")


@pytest.mark.parametrize("name", NAMES)
def test_golden(name):
    """Logits and gradients; 2e-5 and 1e-4 are what f32 leaves of them in these models."""
    model, io = _load(name)
    logits = model(io["input_ids"]).logits
    assert_close(logits, io["logits"], "logits", SEED, 2e-5)
    F.cross_entropy(logits.flatten(0, 1), io["labels"].flatten()).backward()
    grads = {n: p.grad for n, p in model.named_parameters()}
    checked = 0
    for key, wanted in io.items():
        if key.startswith("grad/") and key[5:] in grads:
            assert_close(grads[key[5:]], wanted, key, SEED, 1e-4)
            checked += 1
    assert checked >= len(grads)


@pytest.mark.parametrize("name", NAMES)
def test_taught_decoding_gives_the_logits_of_the_whole(name):
    """generate() with teacher_outputs: a prompt of 4 tokens, then single tokens."""
    model, io = _load(name)
    ids = io["input_ids"]
    model.eval()
    with torch.no_grad():
        whole = model(ids).logits
    output = model.generate(ids[:, :4], ids.shape[1], teacher_outputs=ids, output_scores=True, return_dict_in_generate=True)
    assert torch.equal(output.sequences, ids)
    assert_close(torch.stack(output.scores, dim=1), whole[:, 3:-1], "scores", SEED, 2e-5)


@pytest.mark.parametrize("name", ["mamba1", "mamba2", "mamba3_siso"])
def test_greedy_tokens(name):
    model, io = _load(name)
    ids = io["input_ids"][:, :5]
    model.eval()
    found = model.generate(ids, 12)
    wanted = ids
    with torch.no_grad():
        while wanted.shape[1] < 12:
            wanted = torch.cat([wanted, model(wanted).logits[:, -1:].argmax(-1)], dim=1)
    assert torch.equal(found, wanted)


def test_generation_options(capsys):
    model, io = _load("mamba2")
    model.eval()
    ids = io["input_ids"][:, :5]
    first = int(model.generate(ids[:1], 6)[0, 5])
    assert model.generate(ids[:1], 12, eos_token_id=first).shape == (1, 6)

    class Streamer:
        def __init__(self):
            self.shapes, self.ended = [], False

        def put(self, value):
            self.shapes.append(tuple(value.shape))

        def end(self):
            self.ended = True

    streamer = Streamer()
    model.generate(ids, 8, streamer=streamer)
    assert streamer.shapes == [(2, 5), (2, 1), (2, 1), (2, 1)] and streamer.ended
    assert int(model.generate(ids, 12, vocab_size=7, top_k=0)[:, 5:].max()) < 7
    model.generate(ids, 6, enable_timing=True, cg=True)
    assert "ms" in capsys.readouterr().out
    repeated = model.generate(ids, 12, repetition_penalty=1e6)
    for row in repeated.tolist():
        assert len(set(row[5:])) == len(row[5:]) and not set(row[5:]) & set(row[:5])

    class Nothing(generation.GenerationMixin):
        pass

    with pytest.raises(NotImplementedError, match="Nothing has no allocate_inference_cache"):
        Nothing().allocate_inference_cache(1, 1)


def test_filters():
    logits = torch.tensor([[1.0, 3.0, 2.0, 0.0], [0.0, 0.0, 5.0, 0.0]])
    kept = logits.clone()
    generation.modify_logits_for_top_k_filtering(kept, 2)
    assert torch.isfinite(kept).tolist() == [[False, True, True, False], [True, True, True, True]]  # equal ones stay
    kept = logits.clone()
    generation.modify_logits_for_top_p_filtering(kept, 0.7)  # probabilities 0.644, 0.237, ...
    assert torch.isfinite(kept).tolist() == [[False, True, True, False], [False, False, True, False]]
    for top_p in (0.0, 1.0):
        kept = logits.clone()
        generation.modify_logits_for_top_p_filtering(kept, top_p)
        assert torch.equal(kept, logits)
    kept = logits.clone()
    generation.modify_logits_for_min_p_filtering(kept, 0.3)  # of 0.644: 0.193
    assert torch.isfinite(kept).tolist() == [[False, True, True, False], [False, False, True, False]]
    changed = generation.modify_logit_for_repetition_penalty(
        torch.tensor([[2.0, -2.0, 1.0]]), torch.tensor([[0, 1, 0]]), 2.0
    )
    assert changed.tolist() == [[1.0, -4.0, 1.0]]


def test_sampling_follows_the_distribution():
    torch.manual_seed(SEED)
    logits = torch.tensor([0.5, 0.3, 0.2]).log().expand(20000, 3)
    counts = torch.bincount(generation.sample(logits, top_k=0), minlength=3) / 20000
    assert_close(counts, torch.tensor([0.5, 0.3, 0.2]), "frequencies", SEED, 0.04)  # five standard deviations of 0.5
    assert set(generation.sample(logits, top_k=2).tolist()) == {0, 1}
    assert set(generation.sample(logits, top_k=0, min_p=0.5).tolist()) == {0, 1}
    assert set(generation.sample(logits, top_k=3, top_p=0.45).tolist()) == {0}
    assert set(generation.sample(logits).tolist()) == {0}
    with pytest.raises(ValueError, match="top_p is 1.5, but must be at most 1"):
        generation.sample(logits, top_k=0, top_p=1.5)


def test_save_and_load(tmp_path):
    model, io = _load("mamba2")
    model.save_pretrained(tmp_path / "again")
    assert set(hub.load_config_hf(tmp_path / "again")) == set(
        json.loads((GOLDEN / "mamba2" / "config.json").read_text())
    ) | {"attn_cfg", "attn_layer_idx", "d_intermediate", "fused_add_norm", "residual_in_fp32", "rms_norm", "tie_embeddings"}
    again = language_model.MambaLMHeadModel.from_pretrained(tmp_path / "again")
    assert torch.equal(again(io["input_ids"]).logits, model(io["input_ids"]).logits)
    weights = hub.load_state_dict_hf(str(GOLDEN / "mamba2"), dtype=torch.float64)
    assert all(m.dtype == torch.float64 for m in weights.values())


def test_constructors():
    """MixerModel and create_block with the official arguments; norm_epsilon reaches every norm."""
    torch.manual_seed(SEED)
    mixer = language_model.MixerModel(
        16, 2, 32, 11, ssm_cfg={"layer": "Mamba2", "headdim": 8, "d_state": 8}, norm_epsilon=1e-3, rms_norm=True,
        fused_add_norm=True, residual_in_fp32=True)
    assert mixer(torch.zeros(2, 3, dtype=torch.int64)).shape == (2, 3, 16)
    assert mixer.norm_f.eps == 1e-3 and all(layer.norm.eps == layer.norm2.eps == 1e-3 for layer in mixer.layers)
    assert set(mixer.allocate_inference_cache(2, 5)) == {0, 1}
    block = language_model.create_block(16, 0, ssm_cfg={"layer": "Mamba1"}, norm_epsilon=1e-4, layer_idx=3)
    hidden, residual = block(torch.randn(2, 3, 16))
    assert hidden.shape == residual.shape == (2, 3, 16) and block.mixer.layer_idx == 3 and block.norm.eps == 1e-4
    assert isinstance(block.norm, torch.nn.LayerNorm) and block.mlp is None
    with pytest.raises(NotImplementedError, match="layer 1 is attention, which krait.torch does not have"):
        language_model.MixerModel(16, 2, 0, 11, attn_layer_idx=[1])
    x = torch.linspace(-3, 3, 7)
    assert_close(language_model.heavy_tail_activation(x), torch.where(x < 0, 1 / (1 - x), 1 + x), "heavy tail", SEED, 1e-6)


@pytest.mark.parametrize("options", [{}, dict(ngroups=2, bias=True, conv_bias=False, learnable_init_states=True)])
def test_mamba2_simple(options):
    torch.manual_seed(SEED)
    module = Mamba2Simple(8, d_state=4, headdim=4, dt_limit=(0.0, 0.05), dtype=torch.float64, **options)
    if options:
        torch.nn.init.normal_(module.init_states)
    r = Random(SEED)
    parameters = dict(module.named_parameters())

    def reference(u, **p):
        zxbcdt = F.linear(u, p["in_proj.weight"], p.get("in_proj.bias"))
        nv = p["conv1d.weight"].shape[0]
        z, xbc, dt = zxbcdt.split([16, nv, 4], dim=-1)
        xbc = references.causal_conv1d_ref(xbc.transpose(1, 2), p["conv1d.weight"].squeeze(1), p.get("conv1d.bias"),
                                           activation="silu").transpose(1, 2)
        ng = module.ngroups
        x, b, c = xbc.split([16, ng * 4, ng * 4], dim=-1)
        dt = F.softplus(dt + p["dt_bias"]).clamp(0.0, 0.05)
        x = x.unflatten(-1, (4, 4))
        initial = p["init_states"] if "init_states" in p else None
        y, _ = references.ssd_states(x, dt, -p["A_log"].exp(), b.unflatten(-1, (ng, 4)), c.unflatten(-1, (ng, 4)), initial)
        y = (y + p["D"][:, None] * x).flatten(2)
        y = references.rms_norm_gated_ref(y, p["norm.weight"], None, z, 1e-5, 16 // ng, False)
        return F.linear(y, p["out_proj.weight"], p.get("out_proj.bias"))

    def mine(u, **p):
        return torch.func.functional_call(module, p, (u,))

    compare(mine, reference, {"u": r(2, 11, 8), **{n: p.detach().double() for n, p in parameters.items()}}, SEED)
    with pytest.raises(ValueError, match="headdim = 5 does not divide d_inner = 16"):
        Mamba2Simple(8, headdim=5)


def test_packed_rows_of_mamba2_simple():
    torch.manual_seed(SEED)
    module = Mamba2Simple(8, d_state=4, headdim=4, dtype=torch.float64)
    u = Random(SEED)(1, 12, 8)
    seq_idx = torch.tensor([[0] * 5 + [1] * 7], dtype=torch.int32)
    parts = torch.cat([module(u[:, :5]), module(u[:, 5:])], dim=1)
    assert_close(module(u, seq_idx), parts, "packed", SEED)


def test_use_linear():
    """The same parameters and results to rounding, values and gradients; only exact torch.nn.Linear layers change."""
    import krait.compat

    class Other(torch.nn.Linear):
        pass

    torch.manual_seed(SEED)
    model = torch.nn.Sequential(
        torch.nn.Linear(6, 8), torch.nn.Tanh(), Other(8, 8), torch.nn.Linear(8, 3, bias=False)
    ).double()
    x = Random(SEED)(5, 6)

    def run():
        model.zero_grad()
        y = model(x)
        y.square().sum().backward()
        return [y.detach(), *(p.grad.clone() for p in model.parameters())]

    names, wanted = list(model.state_dict()), run()
    assert krait.compat.use_linear(model) == 2 and krait.compat.use_linear(model) == 0
    assert list(model.state_dict()) == names and type(model[2]) is Other and isinstance(model[0], torch.nn.Linear)
    for i, (a, b) in enumerate(zip(run(), wanted)):
        assert_close(a, b, f"result {i}", SEED)


@pytest.mark.parametrize("name", ["Mamba2", "Mamba2Simple"])
def test_process_groups_are_refused(name):
    import krait.torch

    if name == "Mamba2":
        with pytest.raises(NotImplementedError, match="process_group"):
            krait.torch.Mamba2(16, headdim=8, process_group=object())
    else:
        with pytest.raises(TypeError, match="process_group"):
            Mamba2Simple(16, headdim=8, process_group=object())


def test_hub_names_need_the_package(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(
        ImportError, match="'no/such' is no folder; names of repositories on a hub need the package huggingface_hub"
    ):
        hub.load_config_hf("no/such")
