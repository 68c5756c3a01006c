"""Models and ops against the recorded numbers of the official implementation and of transformers (tests/golden)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import GOLDEN, assert_near, read_safetensors

import krait
from krait import ssd

FOLDERS = sorted(path.parent for path in GOLDEN.glob("*/*/io.safetensors"))
pytestmark = pytest.mark.skipif(not FOLDERS, reason="tests/golden is not here")

# The recorded models were computed in f32 or rounded to it; 2.4e-6 of the maximum was the worst of two implementations in
# other orders of summation. Gradients pass twice as many sums.
VALUES, GRADIENTS = 2e-5, 1e-4


@pytest.fixture(params=FOLDERS, ids=lambda path: f"{path.parent.name}/{path.name}")
def folder(request: pytest.FixtureRequest) -> Path:
    path: Path = request.param
    return path


def io_of(folder: Path) -> dict[str, np.ndarray]:
    return read_safetensors(folder / "io.safetensors")


def labels_of(io: dict[str, np.ndarray]) -> np.ndarray | None:
    return io.get("labels")


def test_logits(folder: Path) -> None:
    m, io = krait.load(folder), io_of(folder)
    assert_near(m.logits(io["input_ids"]), io["logits"], VALUES, "logits")
    if "hidden" in io:
        assert_near(m.hidden(io["input_ids"]), io["hidden"], VALUES, "hidden")
    if "padded_logits" in io:
        mask = io["padded_mask"]
        got = m.logits(io["padded_ids"], mask=mask)
        assert_near(got[mask == 1], io["padded_logits"][mask == 1], VALUES, "padded")


def test_steps_and_states(folder: Path) -> None:
    m, io = krait.load(folder), io_of(folder)
    s, steps = None, []
    for column in io["input_ids"].T:
        y, s = m.step(column, s)
        steps.append(y)
    assert s is not None
    assert_near(np.stack(steps, axis=1), io.get("step_logits", io["logits"]), VALUES, "steps")
    for name in io:
        if name.startswith("final_"):
            kind, layer = name[len("final_") :].split("_")[0], name.rsplit("/", 1)[1]
            assert_near(s[f"layers.{layer}.{kind}"], io[name], VALUES, name)


def test_loss_and_gradients(folder: Path) -> None:
    m, io = krait.load(folder), io_of(folder)
    loss, grads = m.loss_and_grads(io["input_ids"], labels_of(io))
    assert_near(loss, io["loss"].reshape(()), VALUES, "loss")
    compared = 0
    for name, want in io.items():
        if name.startswith("grad/"):
            got = grads[renamed(name[len("grad/") :], grads)]
            assert_near(got.reshape(want.shape), want, GRADIENTS, name)
            compared += 1
    assert compared == sum(name.startswith("grad/") for name in io)


def renamed(name: str, grads: dict[str, Any]) -> str:
    """Names of transformers, as the table has them; a tied head is the embedding."""
    official = name.replace("backbone.embeddings.", "backbone.embedding.")
    return official if official in grads else "backbone.embedding.weight"


def test_greedy_tokens(folder: Path) -> None:
    io = io_of(folder)
    if "gen_ids" not in io:
        pytest.skip("no recorded tokens")
    m = krait.load(folder)
    prompts = [row[:12].tolist() for row in io["gen_ids"]]
    never = {i: -np.inf for i in m.eos}
    results = m.generate(prompts, temperature=0, max_tokens=16, stream=False, logit_bias=never, ignore_eos=True)
    for row, result in zip(io["gen_ids"], results):
        assert result.ids == row[12:].tolist()


def test_the_same_bits_through_a_saved_copy(folder: Path, tmp_path: Path) -> None:
    m, io = krait.load(folder), io_of(folder)
    m.save(tmp_path / "copy")
    again = krait.load(tmp_path / "copy", mmap=False)
    assert np.array_equal(again.logits(io["input_ids"]), m.logits(io["input_ids"]))


# ---- ops, in f64: an independent implementation agrees to 4e-15, and 1e-11 is the bound of `krait check --ops` ----

OPS = GOLDEN / "ops.safetensors"
EXACT = 1e-11


@pytest.fixture(scope="module")
def ops() -> dict[str, np.ndarray]:
    if not OPS.exists():
        pytest.skip("tests/golden/ops.safetensors is not here")
    return read_safetensors(OPS)


def part(ops: dict[str, np.ndarray], case: str, kind: str) -> dict[str, np.ndarray]:
    start = f"{case}/{kind}/"
    return {name[len(start) :]: ops[name].astype(np.float64) for name in ops if name.startswith(start)}


def cases(ops: dict[str, np.ndarray], kind: str) -> list[str]:
    return sorted({name.split("/")[0] for name in ops if name.rsplit("/")[0].rsplit("_", 1)[0] == kind})


def test_ssd_minimal(ops: dict[str, np.ndarray]) -> None:
    found = cases(ops, "ssd_minimal")
    for case in found:
        given, w, out, grad = (part(ops, case, kind) for kind in ("in", "w", "out", "grad"))
        operands = dict(
            v=given["X"][:, :, None], da=given["A"], b=given["B"][:, :, None], c=given["C"][:, :, None],
            initial=given.get("initial_states"),
        )  # fmt: skip
        for algorithm in ("minimal", "serial", "serial_recalculated"):
            (y, final), backward = ssd.vjp(ssd.ssd3_double, **operands, algorithm=algorithm, chunk_len=8)
            names = sorted(out)
            y_name = next(n for n in names if out[n].shape == given["X"].shape)
            final_name = next((n for n in names if n != y_name), None)
            assert_near(y[:, :, 0], out[y_name], EXACT, f"{case} y {algorithm}")
            g_final = None
            if final_name:
                assert_near(final, out[final_name], EXACT, f"{case} final {algorithm}")
                g_final = w[final_name]
            g = backward(w[y_name][:, :, None], g_final)
            assert_near(g["v"][:, :, 0], grad["X"], EXACT, f"{case} X {algorithm}")
            assert_near(g["da"], grad["A"], EXACT, f"{case} A {algorithm}")
            assert_near(g["b"][:, :, 0], grad["B"], EXACT, f"{case} B {algorithm}")
            assert_near(g["c"][:, :, 0], grad["C"], EXACT, f"{case} C {algorithm}")
            if "initial_states" in grad:
                assert_near(g["initial"], grad["initial_states"], EXACT, f"{case} initial {algorithm}")
    assert found


def token_major(x: np.ndarray) -> np.ndarray:
    """[b i s] as [b s i], without a copy."""
    return x.swapaxes(1, 2)


def grouped(x: np.ndarray) -> np.ndarray:
    """[b r s] or [b g r s] as [b s g r]."""
    return x.transpose(0, 2, 1)[:, :, None] if x.ndim == 3 else x.transpose(0, 3, 1, 2)


def test_selective_scan(ops: dict[str, np.ndarray]) -> None:
    found = cases(ops, "selective_scan")
    for case in found:
        given, w, out, grad = (part(ops, case, kind) for kind in ("in", "w", "out", "grad"))
        raw = token_major(given["delta"])
        bias = given.get("delta_bias")
        (dt, back_dt) = ssd.vjp(ssd.softplus, raw, bias)
        (y, final), backward = ssd.vjp(
            ssd.selective_scan, token_major(given["u"]), dt, given["A"], grouped(given["B"]), grouped(given["C"]),
            given.get("D"), token_major(given["z"]) if "z" in given else None,
        )  # fmt: skip
        y_name = next(n for n in out if out[n].shape == given["u"].shape)
        assert_near(token_major(y), out[y_name], EXACT, f"{case} y")
        last = next((n for n in out if n != y_name), None)
        if last:
            assert_near(final, out[last], EXACT, f"{case} final")
        g = backward(token_major(w[y_name]), w[last] if last else None)
        g_raw = back_dt(g["dt"])
        assert_near(token_major(g["x"]), grad["u"], EXACT, f"{case} u")
        assert_near(token_major(g_raw["x"]), grad["delta"], EXACT, f"{case} delta")
        assert_near(g["a"], grad["A"], EXACT, f"{case} A")
        assert_near(g["b"], grouped(grad["B"]), EXACT, f"{case} B")
        assert_near(g["c"], grouped(grad["C"]), EXACT, f"{case} C")
        for name, got in (("D", "d"), ("delta_bias", None)):
            if name in grad:
                assert_near(g[got] if got else g_raw["bias"], grad[name], EXACT, f"{case} {name}")
        if "z" in grad:
            assert_near(token_major(g["z"]), grad["z"], EXACT, f"{case} z")
    assert found
