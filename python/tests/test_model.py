"""Models: calls and states, loss and gradients, weights, files."""

from __future__ import annotations

import copy
import gc
import json
import weakref
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from conftest import FAMILIES, assert_near, bpe_text, small, tokens

import krait

# f32 sums of a few hundred terms, in another order: 2e-6 of the maximum was seen, ten times that is allowed.
NEAR = 2e-5


def test_facts(family: str) -> None:
    m = small(family)
    assert (m.family, m.n_layers, m.d_model, m.vocab_size, m.width) == (family, 2, 16, 256, 256)
    assert m.parameters == m.params.elements == sum(p.size for p in m.params.values())
    assert repr(m).startswith(f"{family} · 2 layers · d 16 · ") and repr(m).endswith("×2")
    assert m.context.threads == 2 and m.device == "cpu"
    assert m.memory()["weight_bytes"] == 4 * m.parameters
    assert m.config == json.loads(m.config_text())


def test_calls_in_pieces_give_the_whole(family: str) -> None:
    m, ids = small(family), tokens(2, 11)
    whole, end = m.forward(ids)
    assert whole.shape == (2, 11, 256) and whole.dtype == np.float32
    assert_near(m.logits(ids), whole, 0, "logits")
    assert_near(m.logits(ids, last=True), whole[:, -1], NEAR, "last")
    a, s = m.forward(ids[:, :4])
    b, s = m.forward(ids[:, 4:9], s)
    parts, step = [a, b], s
    for t in (9, 10):
        y, step = m.step(ids[:, t], step)
        parts.append(y[:, None])
    assert_near(np.concatenate(parts, axis=1), whole, NEAR, "pieces")
    for name in end:
        assert_near(step[name], end[name], NEAR, name)


def test_a_step_in_place_is_the_step(family: str) -> None:
    m, ids = small(family), tokens(2, 6)
    _, s = m.forward(ids)
    kept = s.copy()
    y, new = m.step([1, 2], kept)
    z, same = m.step([1, 2], s, in_place=True)
    assert same is s and np.array_equal(y, z)
    for name in new:
        assert np.array_equal(new[name], s[name]), name


def test_a_state_with_arrays_does_not_change_in_place(model: krait.Model) -> None:
    _, s = model.forward(tokens(1, 3))
    held = s["layers.0.ssm"]
    with pytest.raises(BufferError, match="1 arrays over its memory"):
        model.step([1], s, in_place=True)
    del held
    model.step([1], s, in_place=True)
    with pytest.raises(ValueError, match="needs a state"):
        model._core.call(krait._core.Tape(model.context), "step", None, None, in_place=True)


def test_rows_of_states(family: str) -> None:
    m, ids = small(family), tokens(3, 5)
    _, s = m.forward(ids)
    picked = s.select([2, 0, 2])
    forked = s.fork(row=1, count=4)
    joined = krait.State.join([s, forked])
    assert (s.batch, picked.batch, forked.batch, joined.batch) == (3, 3, 4, 7)
    for name in s:
        assert np.array_equal(picked[name], s[name][[2, 0, 2]])
        assert np.array_equal(forked[name], s[name][[1] * 4])
        assert np.array_equal(joined[name], np.concatenate([s[name], forked[name]]))
    assert s.nbytes == sum(s[name].nbytes for name in s)
    assert krait.State.join([s]).batch == 3
    with pytest.raises(krait.ArgumentError, match="no state"):
        krait.State.join([])
    with pytest.raises(krait.Error, match="row"):
        s.select([3])


def test_initial_states(model: krait.Model) -> None:
    s = model.state(2)
    assert s.is_initial and s.batch == 2 and list(s) == []
    y, new = model.step([1, 2], s)
    assert not new.is_initial and np.array_equal(y, model.step([1, 2])[0])
    with pytest.raises(KeyError):
        new["layers.9.ssm"]


def test_states_in_files(model: krait.Model, tmp_path: Path) -> None:
    _, s = model.forward(tokens(2, 4))
    s.save(tmp_path / "s")
    for again in (model.load_state(tmp_path / "s"), model.load_state(s.to_bytes()), copy.deepcopy(s)):
        assert all(np.array_equal(again[name], s[name]) for name in s)
    other = krait.new("mamba2", seed=8, **FAMILIES["mamba2"])
    with pytest.raises(krait.Error, match="state"):
        other.load_state(tmp_path / "s")


def test_packed_and_padded_rows(family: str) -> None:
    m, ids = small(family), tokens(1, 9)
    start = np.zeros((1, 9), np.int32)
    start[0, [0, 4]] = 1
    packed, s = m.forward(ids, seq_start=start)
    assert s.batch == 2
    other, _ = m.forward(ids, cu_seqlens=[0, 4, 9])
    assert_near(other, packed, 0, "cu_seqlens")
    assert_near(packed[:, :4], m.logits(ids[:, :4]), NEAR, "first")
    assert_near(packed[:, 4:], m.logits(ids[:, 4:]), NEAR, "second")
    reset, s = m.forward(ids, reset=start)
    assert s.batch == 1
    assert_near(reset, packed, NEAR, "reset")
    padded = np.concatenate([np.zeros((1, 3), int), ids], axis=1)
    mask = np.concatenate([np.zeros((1, 3), int), np.ones((1, 9), int)], axis=1)
    assert_near(m.logits(padded, mask=mask)[:, 3:], m.logits(ids), NEAR, "padded")


def test_step_infinite(model: krait.Model) -> None:
    y = model.step_infinite([5])
    s = None
    for _ in range(400):
        z, s = model.step([5], s)
    # Slowest decay of these weights: dt A = 1e-3, so that 400 steps leave exp(-0.4) of the way in that head.
    assert y.shape == z.shape
    long, _ = model.forward(np.full((1, 20000), 5), last=True)
    assert_near(long, y, 1e-3, "steady state")


def finite_difference(loss: Callable[[], float], p: krait.Parameter, direction: np.ndarray, eps: float) -> float:
    old = p.read()
    p.write(old + eps * direction)
    above = loss()
    p.write(old - eps * direction)
    below = loss()
    p.write(old)
    return (above - below) / (2 * eps)


def test_gradients_are_finite_differences(family: str) -> None:
    m, ids = small(family, dtype="f64"), tokens(2, 7)
    loss, grads = m.loss_and_grads(ids)
    assert loss == m.loss(ids)
    assert set(grads) == set(m.params)
    rng = np.random.default_rng(2)
    for name, p in m.params.items():
        size = max(float(np.sqrt((p.read() ** 2).mean())), 0.01)
        direction = size * rng.standard_normal(p.shape)
        want = finite_difference(lambda: m.loss(ids), p, direction, 1e-5)
        got = float((grads[name] * direction).sum())
        # f64: truncation (1e-5)^2 times a third derivative up to 1e3, and rounding 5 * 1e-16 / 1e-5.
        assert abs(got - want) <= 1e-7 * max(1.0, abs(want)), f"{name}: {got} and {want}"


def test_loss_options(model: krait.Model) -> None:
    ids = tokens(2, 6)
    base = model.loss(ids)
    labels = np.concatenate([ids[:, 1:], np.full((2, 1), -100)], axis=1)
    assert model.loss(ids, labels) == pytest.approx(base, rel=1e-6)  # the same sum, in the same order
    logits = model.logits(ids).astype(np.float64)
    logits -= logits.max(-1, keepdims=True)
    p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    want = -np.take_along_axis(p[:, :-1], ids[:, 1:, None], axis=-1).mean()
    assert base == pytest.approx(want, rel=1e-5)  # f32 logits
    scored = np.zeros((2, 6), int)
    scored[0, 2] = 1
    assert model.loss(ids, labels, scored=scored) == pytest.approx(-p[0, 2, ids[0, 3]], rel=1e-5)
    assert model.loss(ids, label_smoothing=0.1) != base
    _, s = model.forward(tokens(2, 3, seed=5))
    assert model.loss(ids, state=s) != base
    with pytest.raises(krait.Error, match="dropout"):
        model.loss(ids, dropout=2.0)


def test_gradients_do_not_accumulate(model: krait.Model) -> None:
    ids = tokens(1, 5)
    first, second = model.loss_and_grads(ids)[1], model.loss_and_grads(ids)[1]
    for name in first:
        assert np.array_equal(first[name], second[name]), name


def test_networks_of_features() -> None:
    m = krait.new("mamba2", d_model=16, n_layers=1, per_head_dim=8, state_rank=8, input_size=3, output_size=2, seed=1)
    x = np.random.default_rng(1).standard_normal((2, 5, 3), dtype=np.float32)
    y, s = m.forward(x)
    assert y.shape == (2, 5, 2) and m.vocab_size == 0
    z, _ = m.step(x[:, 0])
    assert_near(z, y[:, 0], NEAR, "step")
    loss, grads = m.loss_and_grads(x, np.zeros_like(y), kind="mse")
    assert loss == pytest.approx(float((y.astype(np.float64) ** 2).mean()), rel=1e-5)
    assert np.abs(grads["in_proj.weight"]).max() > 0
    with pytest.raises(krait.DtypeError):
        m.logits(np.zeros((1, 2, 3), complex))


def test_weights_are_a_mapping(model: krait.Model) -> None:
    name = "backbone.layers.1.mixer.D"
    p = model.params[name]
    assert name in model.params and len(model.params) == len(list(model.params))
    assert (p.name, p.shape, p.ndim, p.size, len(p), p.dtype_name) == (name, (4,), 1, 4, 4, "f32")
    assert not p.numpy().flags.writeable
    before = model.logits([[1, 2, 3]])
    p[:] = 3
    assert p.read().tolist() == [3] * 4 and not np.array_equal(model.logits([[1, 2, 3]]), before)
    p[1:3] = [1, 2]
    p[0] = model.params["backbone.layers.0.mixer.D"][0]
    model.params[name] = np.arange(4)
    assert p[...].tolist() == [0, 1, 2, 3]
    p[1:] *= 2
    assert p[...].tolist() == [0, 2, 4, 6] and p[1] == 2 and p[1:][0] == 2
    p[1:] /= 2
    p[np.array([True, False, False, True])] = -1
    assert p[...].tolist() == [-1, 1, 2, -1]
    with pytest.raises(krait.ShapeError, match=r"is \[4\], but the values are \[5\]"):
        p.write(np.zeros(5))
    with pytest.raises(KeyError):
        model.params["nothing"]
    assert name in repr(model.params)


def test_weights_in_files(model: krait.Model, tmp_path: Path) -> None:
    path = str(tmp_path / "w.safetensors")
    model.params.save(path)
    want = model.logits([[1, 2]])
    model.params.reset()
    assert not np.array_equal(model.logits([[1, 2]]), want)
    model.params.load(path)
    assert np.array_equal(model.logits([[1, 2]]), want)


def test_packing_does_not_change_a_bit(model: krait.Model) -> None:
    want = model.step([3])[0]
    model.params.pack()
    assert np.array_equal(model.step([3])[0], want)
    model.params["backbone.layers.0.mixer.out_proj.weight"][...] = 0
    changed = model.step([3])[0]
    model.params.unpack()
    assert np.array_equal(model.step([3])[0], changed) and not np.array_equal(changed, want)


@pytest.mark.parametrize("layout", ["official", "hf"])
@pytest.mark.parametrize("kind", ["mamba1", "mamba2"])
def test_models_in_folders(kind: str, layout: str, tmp_path: Path) -> None:
    m = small(kind)
    want = m.logits([[1, 2, 3]])
    m.save(tmp_path / "m", layout=layout)  # type: ignore[arg-type]
    for again in (krait.load(tmp_path / "m"), krait.load(str(tmp_path / "m"), mmap=False, threads=1)):
        assert np.array_equal(again.logits([[1, 2, 3]]), want)
        assert again.tokenizer is not None and again.tokenizer.vocab_size == 256
    half = krait.load(tmp_path / "m", dtype="bf16")
    assert half.params["backbone.layers.0.mixer.out_proj.weight" if layout == "official" else next(iter(half.params))]
    # bf16 has 8 significant bits; products of some 30 rounded weights, in two layers.
    assert_near(half.logits([[1, 2, 3]]), want, 0.05, "bf16")


def test_saving_with_options(model: krait.Model, tmp_path: Path) -> None:
    model.save(tmp_path / "a", dtype="bf16", container="torch")
    assert (tmp_path / "a" / "pytorch_model.bin").exists()
    model.save(tmp_path / "b", max_shard_bytes=10000)
    assert len(list((tmp_path / "b").glob("*.safetensors"))) > 1
    assert np.array_equal(krait.load(tmp_path / "b").logits([[1]]), model.logits([[1]]))
    with pytest.raises(ValueError, match="layout is 'onnx'"):
        model.save(tmp_path / "c", layout="onnx")  # type: ignore[arg-type]
    with pytest.raises(krait.UnsupportedError, match="hf layout has no Mamba-3"):
        small("mamba3").save(tmp_path / "c", layout="hf")


def test_new_from_a_config(model: krait.Model, tmp_path: Path) -> None:
    model.save(tmp_path)
    for config in (tmp_path, tmp_path / "config.json", model.config):
        assert krait.new(config=config).parameters == model.parameters
    wide = krait.new(config=model.config, d_model=32)
    assert wide.d_model == 32
    custom = krait.new("mamba2", schedule=[0, 1, 1, 0], **FAMILIES["mamba2"])
    assert custom._info["n_virtual"] == 4


def test_every_field_of_a_config_can_be_set() -> None:
    for family in FAMILIES:
        defaults = krait._core.config_defaults(family)
        made = krait._core.Block(krait.Context(threads=1), family, {**defaults, "d_model": 64})
        assert made.params().elements > 0
    layers = {**krait._core.config_defaults("layers"), "n_layers": 1}
    assert krait._core.Block(krait.Context(threads=1), "mamba1", {"d_model": 8}, layers).params().elements > 0


def test_seeds(family: str) -> None:
    a, b, c = (krait.new(family, seed=seed, **FAMILIES[family]) for seed in (1, 1, 2))
    assert np.array_equal(a.logits([[1]]), b.logits([[1]])) and not np.array_equal(a.logits([[1]]), c.logits([[1]]))


def use_a_model(context: krait.Context) -> weakref.ref[krait.Model]:
    m = krait.new("mamba2", context=context, **FAMILIES["mamba2"])
    m.forward(tokens(1, 4))
    m.loss_and_grads(tokens(1, 4))
    m.generate("a", max_tokens=2, stream=False)
    return weakref.ref(m)


def test_a_model_is_freed_at_once() -> None:
    context = krait.Context(threads=1)
    use_a_model(context)  # the context keeps its scratch memory
    before = context.memory()["host"]["live_blocks"]
    gc.disable()
    try:
        assert use_a_model(context)() is None, "a cycle keeps the model until the garbage collector runs"
        assert context.memory()["host"]["live_blocks"] == before
    finally:
        gc.enable()


def test_tokenizers(tmp_path: Path) -> None:
    tok = krait.Tokenizer.bytes()
    assert tok.encode("é") == [195, 169] and tok.decode([195, 169]) == "é" and len(tok) == 256
    assert tok.decode([255]) == "\ufffd" and tok.decode_bytes([255]) == b"\xff"
    assert tok.token(300) is None and not tok.is_special(3) and tok.find("<s>") is None
    with pytest.raises(UnicodeDecodeError):
        tok.decode([255], errors="strict")
    with pytest.raises(krait.ShapeError):
        tok.decode([[1, 2]])
    with pytest.raises(krait.ArgumentError, match="32 bits"):
        tok.decode([2**40])
    text = bpe_text()
    (tmp_path / "tokenizer.json").write_text(text)
    load = krait.Tokenizer.load
    for bpe in (load(tmp_path), load(tmp_path / "tokenizer.json"), krait.Tokenizer.parse(text)):
        assert bpe.encode("abab") == [256, 256] and bpe.decode([256, 257, 97]) == "aba"
        assert bpe.decode([256, 257], skip_special=False) == "ab<|endoftext|>"
        assert bpe.find("<|endoftext|>") == 257 and bpe.is_special(257)
        assert bpe.encode("<|endoftext|>", parse_special=True) == [257]


def test_a_model_saves_its_tokenizer(tmp_path: Path) -> None:
    test_tokenizers(tmp_path)
    m = small(vocab_size=300)
    assert m.tokenizer is None
    m.tokenizer = krait.Tokenizer.load(tmp_path)
    m.save(tmp_path / "m")
    again = krait.load(tmp_path / "m")
    assert again.tokenizer is not None and again.tokenizer.encode("ab") == [256] and again.eos == [257]
    assert krait.load(tmp_path / "m", tokenizer=False).tokenizer is None
    assert krait.load(tmp_path / "m", tokenizer="bytes").tokenizer.vocab_size == 256  # type: ignore[union-attr]
