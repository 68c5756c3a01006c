"""krait.hf: Mamba-3 folders load, generate, train and save in transformers."""

from __future__ import annotations

import os
import pathlib

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
if int(transformers.__version__.split(".")[0]) < 5:
    pytest.skip(f"krait.hf needs transformers 5, not {transformers.__version__}", allow_module_level=True)
safetensors_torch = pytest.importorskip("safetensors.torch")

from compat_cases import assert_close  # noqa: E402
from torch_cases import each_device  # noqa: E402

import krait.hf  # noqa: E402

ROOT = pathlib.Path(os.environ.get("KR_SOURCE") or pathlib.Path(__file__).resolve().parents[3])
GOLDEN = ROOT / "tests" / "golden" / "official_lm"
FOLDERS = ["mamba3_siso", "mamba3_mimo", "mamba3_siso_rope1_outnorm"]
SEED = 11


@pytest.fixture(scope="module", autouse=True)
def registered():
    krait.hf.register()
    krait.hf.register()


def _load(name, device="cpu"):
    folder = GOLDEN / name
    config = krait.hf.KraitConfig.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, config=config)
    assert type(model) is krait.hf.KraitForCausalLM
    io = safetensors_torch.load_file(folder / "io.safetensors")
    return model.to(device), {name: x.to(device) for name, x in io.items()}


def _tiny(**changes):
    settings = dict(d_model=32, d_intermediate=64, n_layer=2, vocab_size=61, pad_vocab_size_multiple=8,
                    ssm_cfg={"layer": "Mamba3", "d_state": 16, "headdim": 8}, eos_token_id=2, pad_token_id=0, bos_token_id=1)
    torch.manual_seed(SEED)
    return krait.hf.KraitForCausalLM(krait.hf.KraitConfig(**settings | changes))


@each_device
@pytest.mark.parametrize("name", FOLDERS)
def test_golden(name, device):
    """Logits, loss and gradients of the official model; 2e-5 and 1e-4 are what f32 leaves of them in these models."""
    model, io = _load(name, device)
    out = model(io["input_ids"], use_cache=False)
    assert_close(out.logits, io["logits"], "logits", SEED, 2e-5)
    loss = torch.nn.functional.cross_entropy(out.logits.flatten(0, 1), io["labels"].flatten())
    assert_close(loss, io["loss"].squeeze(), "loss", SEED, 1e-6)
    loss.backward()
    grads = {n: p.grad for n, p in model.named_parameters()}
    for key, wanted in io.items():
        if key.startswith("grad/") and key[5:] in grads:
            assert_close(grads[key[5:]], wanted, key, SEED, 1e-4)


@each_device
@pytest.mark.parametrize("name", FOLDERS)
def test_pieces_and_single_tokens(name, device):
    """Any split of the tokens gives the same logits; f32 noise as above."""
    model, io = _load(name, device)
    model.eval()
    ids = io["input_ids"]
    with torch.no_grad():
        whole = model(ids).logits
        cache, parts = None, []
        for start, end in ((0, 5), (5, 6), (6, 9), *((i, i + 1) for i in range(9, ids.shape[1]))):
            out = model(ids[:, start:end], past_key_values=cache, use_cache=True)
            cache = out.past_key_values
            parts.append(out.logits)
    assert cache.get_seq_length() == ids.shape[1]
    assert_close(torch.cat(parts, dim=1), whole, "logits", SEED, 2e-5)


def test_generate():
    model = _tiny().eval()
    ids = torch.randint(3, 61, (2, 7), generator=torch.Generator().manual_seed(SEED))
    options = dict(max_new_tokens=10, do_sample=False, eos_token_id=None)
    with_cache = model.generate(ids, **options)
    assert with_cache.shape == (2, 17) and torch.equal(with_cache, model.generate(ids, use_cache=False, **options))
    beams = model.generate(ids, num_beams=3, **options)
    assert torch.equal(beams, model.generate(ids, num_beams=3, use_cache=False, **options))


def test_left_padding_changes_nothing():
    """A padded row gives the logits and tokens that it gives alone; padding is left out exactly but for sums of one more
    0."""
    model = _tiny().eval()
    ids = torch.randint(3, 61, (2, 9), generator=torch.Generator().manual_seed(SEED))
    mask = torch.ones_like(ids)
    ids[0, :4], mask[0, :4] = 0, 0
    options = dict(max_new_tokens=8, do_sample=False, eos_token_id=None)
    with torch.no_grad():
        assert_close(model(ids, attention_mask=mask).logits[:1, 4:], model(ids[:1, 4:]).logits, "logits", SEED, 2e-5)
    padded = model.generate(ids, attention_mask=mask, **options)
    assert torch.equal(padded[:1, 9:], model.generate(ids[:1, 4:], **options)[:, 5:])


@pytest.mark.parametrize("tied", [True, False])
def test_save_and_load(tmp_path, tied):
    model = _tiny(tie_embeddings=tied).eval()
    model.save_pretrained(tmp_path)
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert type(again) is krait.hf.KraitForCausalLM and again.config.tie_embeddings == tied
    assert (again.lm_head.weight is again.backbone.embedding.weight) == tied
    for (name, a), b in zip(model.state_dict().items(), again.state_dict().values()):
        assert torch.equal(a, b), name
    ids = torch.arange(3, 12)[None]
    assert torch.equal(model(ids).logits, again(ids).logits)
    from krait.torch import MambaLMHeadModel

    official = MambaLMHeadModel(again.config.official())
    official.load_state_dict({**again.state_dict()})
    assert_close(official(ids).logits, model(ids).logits, "logits", SEED, 1e-6)


def test_labels_hidden_states_and_logits_to_keep():
    model = _tiny()
    ids = torch.randint(3, 61, (2, 9), generator=torch.Generator().manual_seed(SEED))
    out = model(ids, labels=ids, output_hidden_states=True)
    wanted = torch.nn.functional.cross_entropy(out.logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    assert_close(out.loss, wanted, "loss", SEED, 1e-6)
    assert len(out.hidden_states) == 3 and out.past_key_values is None
    assert torch.equal(model(ids, logits_to_keep=2).logits, out.logits[:, -2:])
    embedded = model(inputs_embeds=model.get_input_embeddings()(ids)).logits
    assert torch.equal(embedded, out.logits)
    assert isinstance(model(ids, return_dict=False), tuple)
    with pytest.raises(ValueError, match="give input_ids or inputs_embeds, one of them"):
        model()


def test_trainer(tmp_path):
    """Twenty steps on one batch bring the loss down."""
    pytest.importorskip("accelerate")
    model = _tiny()
    ids = torch.randint(3, 61, (16,), generator=torch.Generator().manual_seed(SEED))
    data = [{"input_ids": ids, "labels": ids}] * 40
    arguments = transformers.TrainingArguments(output_dir=str(tmp_path), max_steps=20, per_device_train_batch_size=2,
                                               learning_rate=1e-2, report_to=[], use_cpu=True, save_strategy="no",
                                               logging_strategy="no")
    before = float(model(ids[None], labels=ids[None]).loss.detach())
    transformers.Trainer(model, arguments, train_dataset=data).train()
    assert float(model(ids[None], labels=ids[None]).loss.detach()) < 0.5 * before


def test_refusals():
    with pytest.raises(ValueError, match=r"ssm_cfg\['layer'\] is 'Mamba2', but must be 'Mamba3'"):
        krait.hf.KraitConfig(ssm_cfg={"layer": "Mamba2"})
    with pytest.raises(ValueError, match="krait.torch has no attention layers"):
        krait.hf.KraitConfig(attn_layer_idx=[1])
