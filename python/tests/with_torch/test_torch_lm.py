"""krait.torch.lm against recorded models: logits, losses, gradients, steps, states, greedy tokens; files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402

import krait  # noqa: E402
import krait.torch as kt  # noqa: E402
from krait.torch.lm import read_safetensors, sample  # noqa: E402
from torch_cases import GOLDEN, assert_close, each_device  # noqa: E402

OFFICIAL = sorted((GOLDEN / "official_lm").iterdir())
TRANSFORMERS = [p for kind in ("hf_mamba", "hf_mamba2") for p in sorted((GOLDEN / kind).iterdir()) if p.is_dir()]
LOGITS, GRADIENTS = 2e-5, 1e-4  # of the largest value, in f32; the recordings are f32 themselves


def stored(folder: Path, device: str = "cpu") -> tuple[Any, dict[str, Any]]:
    io = {name: x.to(device) for name, x in read_safetensors(folder / "io.safetensors").items()}
    return kt.MambaLMHeadModel.from_pretrained(folder, device=device), io


@each_device
@pytest.mark.parametrize("folder", OFFICIAL + TRANSFORMERS, ids=lambda p: f"{p.parent.name}-{p.name}")
def test_logits_loss_and_gradients(folder: Path, device: str) -> None:
    model, io = stored(folder, device)
    ids = io["input_ids"].long()
    kt.copies(reset=True)
    logits = model(ids).logits
    assert_close(logits, io["logits"], LOGITS, "logits")
    if "labels" in io:
        loss = F.cross_entropy(logits.flatten(0, 1), io["labels"].long().flatten())
    else:
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    assert_close(loss, io["loss"].view(()), LOGITS, "loss")
    loss.backward()
    assert kt.copies() == 0
    parameters = dict(model.named_parameters())
    checked = 0
    for name, wanted in io.items():
        if name.startswith("grad/"):
            own = parameters[name[5:].replace("embeddings.", "embedding.")]
            assert_close(own.grad, wanted.view_as(own), GRADIENTS, name)
            checked += 1
    assert checked == len(parameters)


@each_device
@pytest.mark.parametrize("folder", [p for p in OFFICIAL if "mamba3" not in p.name], ids=lambda p: p.name)
def test_steps_and_final_states(folder: Path, device: str) -> None:
    model, io = stored(folder, device)
    ids = io["input_ids"].long()
    params = kt.InferenceParams(ids.shape[1], ids.shape[0])
    rows = []
    kt.copies(reset=True)
    with torch.no_grad():
        for t in range(ids.shape[1]):
            rows.append(model(ids[:, t: t + 1], inference_params=params).logits)
            params.seqlen_offset += 1
    assert kt.copies() == 0
    assert_close(torch.cat(rows, 1), io["step_logits"], LOGITS, "logits of steps")
    for layer, (window, ssm) in params.key_value_memory_dict.items():
        assert_close(window, io[f"final_conv_state/{layer}"], LOGITS, f"window of layer {layer}")
        assert_close(ssm, io[f"final_ssm_state/{layer}"], LOGITS, f"state of layer {layer}")


@each_device
@pytest.mark.parametrize("folder", OFFICIAL, ids=lambda p: p.name)
def test_prompt_and_steps_are_one_sequence(folder: Path, device: str) -> None:
    model, io = stored(folder, device)
    ids = io["input_ids"].long()
    params = kt.InferenceParams(ids.shape[1], ids.shape[0])
    with torch.no_grad():
        rows = [model(ids[:, :-3], inference_params=params).logits]
        params.seqlen_offset = ids.shape[1] - 3
        for t in range(ids.shape[1] - 3, ids.shape[1]):
            rows.append(model(ids[:, t: t + 1], inference_params=params).logits)
            params.seqlen_offset += 1
    assert_close(torch.cat(rows, 1), io["logits"], LOGITS, "logits")


@each_device
@pytest.mark.parametrize("folder", TRANSFORMERS, ids=lambda p: f"{p.parent.name}-{p.name}")
def test_greedy_tokens_of_transformers(folder: Path, device: str) -> None:
    """The recording never takes the end-of-text token: its head row is made very unlikely."""
    model, io = stored(folder, device)
    eos = json.loads((folder / "config.json").read_text())["eos_token_id"]
    ids = io["gen_ids"].long()
    tokens, params = ids[:, :12], kt.InferenceParams(28, ids.shape[0])
    with torch.no_grad():
        given = tokens
        while tokens.shape[1] < 28:
            logits = model(given, inference_params=params, num_last_tokens=1).logits[:, -1]
            logits[:, eos] = -torch.inf
            params.seqlen_offset = tokens.shape[1]
            given = logits.argmax(-1, keepdim=True)
            tokens = torch.cat([tokens, given], 1)
    assert torch.equal(tokens, ids)


@pytest.mark.parametrize("folder", OFFICIAL, ids=lambda p: p.name)
def test_state_dict_round_trip(folder: Path, tmp_path: Path) -> None:
    weights = read_safetensors(folder / "model.safetensors")
    model, io = stored(folder)
    names = set(model.state_dict())
    assert names - set(weights) <= {"lm_head.weight"} and set(weights) <= names
    for name, x in weights.items():
        assert torch.equal(model.state_dict()[name], x), name
    model.save_pretrained(tmp_path)
    again = kt.MambaLMHeadModel.from_pretrained(tmp_path)
    again.load_state_dict(model.state_dict(), strict=True)
    ids = io["input_ids"].long()
    with torch.no_grad():
        assert torch.equal(again(ids).logits, model(ids).logits)


def test_generate_and_sample() -> None:
    model, io = stored(OFFICIAL[1])
    prompt = io["input_ids"].long()[:, :5]
    out = model.generate(prompt, 12, return_dict_in_generate=True, output_scores=True)
    assert out.sequences.shape == (prompt.shape[0], 12) and len(out.scores) == 7
    with torch.no_grad():
        logits = model(out.sequences[:, :-1]).logits[:, 4:]
    assert torch.equal(logits.argmax(-1), out.sequences[:, 5:])
    seeded = [model.generate(prompt, 12, top_k=0, top_p=0.9, temperature=0.7, generator=torch.Generator().manual_seed(3))
              for _ in range(2)]
    assert torch.equal(*seeded)
    first = int(out.sequences[0, 5])
    stopped = model.generate(prompt[:1], 12, eos_token_id=first)
    assert stopped.shape[1] == 6 and int(stopped[0, -1]) == first
    penalised = model.generate(prompt[:1], 6, repetition_penalty=1e9)
    assert int(penalised[0, 5]) not in prompt[0].tolist()


def test_samplers_drop_what_they_promise() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0, 3.0]]).expand(4000, 4)
    generator = torch.Generator().manual_seed(0)
    assert set(sample(logits, top_k=2, generator=generator).tolist()) == {2, 3}
    assert set(sample(logits, top_k=0, top_p=0.6, generator=generator).tolist()) == {3}
    # probabilities are 0.03, 0.09, 0.24 and 0.64: min_p = 0.3 keeps those above 0.19
    assert set(sample(logits, top_k=0, min_p=0.3, generator=generator).tolist()) == {2, 3}
    assert set(sample(logits, top_k=0, generator=generator).tolist()) == {0, 1, 2, 3}


def test_what_a_model_refuses(tmp_path: Path) -> None:
    with pytest.raises(krait.UnsupportedError, match="layer 1 is attention"):
        kt.MambaLMHeadModel(kt.MambaConfig(d_model=32, n_layer=2, vocab_size=8, attn_layer_idx=[1]))
    with pytest.raises(krait.ArgumentError, match="ssm_cfg.layer = 'S4' must be one of Mamba1, Mamba2, Mamba3"):
        kt.MambaLMHeadModel(kt.MambaConfig(d_model=32, n_layer=1, vocab_size=8, ssm_cfg={"layer": "S4"}))
    with pytest.raises(krait.FormatError, match="unknown keys n_layers"):
        kt.MambaConfig.from_dict({"n_layers": 2})
    (tmp_path / "config.json").write_text("{}")
    small = kt.MambaConfig(d_model=32, n_layer=1, vocab_size=8)
    (tmp_path / "config.json").write_text(json.dumps(vars(small)))
    with pytest.raises(krait.IoError, match="neither model.safetensors nor pytorch_model.bin"):
        kt.MambaLMHeadModel.from_pretrained(tmp_path)
    (tmp_path / "model.safetensors").write_bytes((1 << 40).to_bytes(8, "little"))
    with pytest.raises(krait.FormatError, match="longer than the file"):
        kt.MambaLMHeadModel.from_pretrained(tmp_path)


@pytest.mark.parametrize("folder", OFFICIAL, ids=lambda p: p.name)
def test_models_pass_between_krait_and_torch(folder: Path) -> None:
    """There and back: the same weights, and logits that agree."""
    own = krait.load(folder)
    model = kt.from_krait(own)
    stored_model, io = stored(folder)
    for name, x in stored_model.state_dict().items():
        assert torch.equal(model.state_dict()[name], x), name
    ids = io["input_ids"].long()
    with torch.no_grad():
        logits = model(ids).logits
    back = kt.to_krait(model)
    assert_close(torch.tensor(back.logits(ids.numpy())), logits, LOGITS, "logits")
