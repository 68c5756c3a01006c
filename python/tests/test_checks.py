"""krait.check, krait.eval, krait.convert, and the program of the package."""

import filecmp
import json
import math
import pathlib
import subprocess
import sys

import numpy as np
import pytest

import krait
from krait._program import find_program, run_program

SHAPE = {"d_model": 32, "n_layers": 2, "vocab_size": 256, "per_head_dim": 16, "state_rank": 16}
TEXT = "To be, or not to be, that is the question: whether 'tis nobler in the mind to suffer. " * 30


def program(*arguments: object) -> str:
    return subprocess.run([find_program(), *map(str, arguments)], check=True, capture_output=True, text=True).stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    krait.new("mamba2", **SHAPE).save(folder)
    return folder


# ---- check ----


@pytest.mark.slow
def test_check_has_the_rows_of_the_program():
    isa = krait.Context(threads=1).isa
    checks = krait.check(quick=True)
    rows = json.loads(program("check", "--json", "--isa", isa))
    assert [row.check for row in checks] == [row["check"] for row in rows["checks"]]
    assert (checks.passed, checks.failed, checks.skipped) == (rows["passed"], rows["failed"], rows["skipped"])
    assert checks and checks.passed >= 5
    assert repr(checks).splitlines()[-1].startswith(f"{checks.passed} passed, 0 failed")
    assert "<table>" in checks._repr_html_() and checks[0].outcome == "passed"
    measured = [row for row in checks if not math.isnan(row.error)]
    assert measured and all(row.error <= row.limit for row in measured)


def test_check_of_a_model(folder, tmp_path):
    assert krait.check(folder, tokens=16)
    with pytest.raises(krait.Error):
        krait.check(tmp_path / "missing")
    with pytest.raises(ValueError, match="against needs model"):
        krait.check(against=tmp_path)
    with pytest.raises(krait.ArgumentError, match="isa"):
        krait.check(isa="avx3")


def test_failed_checks_are_false():
    row = krait.CheckResult("failed", "matmul", "ref", "panels", 1.0, 1e-6, "relative error 1")
    checks = krait.Checks([row])
    assert not checks and "FAIL" in repr(checks) and "panels" in row.kernel


# ---- eval ----


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"chunk": 32}, {"reset_every": 50, "chunk": 16}, {"max_tokens": 77}])
def test_eval_prints_what_the_program_prints(folder, tmp_path, options):
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    line = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    assert str(krait.load(folder).eval(path, **options)) == program("eval", folder, "--text", path, *line).rstrip("\n")


def test_eval_against_the_logits(folder):
    model = krait.load(folder)
    ids = np.frombuffer(TEXT[:200].encode(), dtype=np.uint8).astype(np.int32)
    logits = np.asarray(model.logits(ids[None])[0], dtype=np.float64)
    logits -= logits.max(-1, keepdims=True)
    logprobs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    expected = -np.mean(logprobs[np.arange(len(ids) - 1), ids[1:]])
    got = krait.eval(folder, ids)
    assert got.tokens == len(ids) - 1 and got.bytes == len(ids) - 1
    assert abs(got.nats - expected) < 1e-5  # logits of f32: 1e-6 each, a mean over 199
    assert got.perplexity == pytest.approx(math.exp(got.nats)) and 0 < got.bits_per_byte < 16


def test_eval_of_documents_begins_anew(folder):
    model = krait.load(folder)
    two = model.eval(krait.data.string("abcdefgh|ijklmnop", separator="|"))
    one = [model.eval(krait.data.string(text)) for text in ("abcdefgh", "ijklmnop")]
    assert two.tokens == 14
    # The same tokens in the same states; the lengths of the calls differ, so the last bits may.
    assert two.nats == pytest.approx(np.mean([e.nats for e in one]), rel=1e-6)


def test_eval_refuses(folder):
    model = krait.load(folder)
    with pytest.raises(ValueError, match="nothing to score"):
        model.eval([5])
    with pytest.raises(ValueError, match="tokens"):
        model.eval(np.array([1, 300]))
    with pytest.raises(ValueError, match="features"):
        model.eval(krait.data.arrays([[1.0], [2.0]]))
    with pytest.raises(ValueError, match="chunk is 0"):
        model.eval([1, 2], chunk=0)


# ---- convert ----


@pytest.mark.slow
def test_convert_writes_what_the_program_writes(folder, tmp_path):
    (folder / "tokenizer_config.json").write_text("{}")
    ours = krait.convert(folder, tmp_path / "ours", layout="hf", dtype="bf16")
    program("convert", folder, tmp_path / "theirs", "--layout", "hf", "--dtype", "bf16")
    same, different, missing = filecmp.cmpfiles(ours, tmp_path / "theirs", [p.name for p in ours.iterdir()], shallow=False)
    assert not different and not missing and "model.safetensors" in same and "tokenizer_config.json" in same
    back = krait.convert(ours, tmp_path / "back", layout="official")
    assert json.loads((back / "config.json").read_text())["d_model"] == 32
    with pytest.raises(FileExistsError, match="force=True"):
        krait.convert(folder, ours)
    with pytest.raises(ValueError, match="same folder"):
        krait.convert(folder, folder)
    assert krait.convert(folder, ours, max_shard_size=20_000, force=True).exists()
    assert len(list(ours.glob("model-*.safetensors"))) > 1


# ---- the program ----


@pytest.mark.slow
def test_program_is_that_of_the_package():
    assert run_program("--version") == f"krait {krait.__version__}\n"
    done = subprocess.run([sys.executable, "-m", "krait", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"krait {krait.__version__}\n"
    with pytest.raises(krait.Error, match="no such file|cannot|not found|does not"):
        run_program("report", "/nonexistent")


def test_notebook_pieces():
    from krait import notebook

    assert notebook.sparkline([1.0]) == ""
    svg = notebook.sparkline([3.0, 1.0, 2.0], 100, 20)
    assert svg.startswith("<svg") and svg.count(",") == 3
    frame = notebook.page('<p class="a">&</p>', 100)._repr_html_()
    assert "&lt;p class=&quot;a&quot;&gt;&amp;&lt;/p&gt;" in frame and 'height="100"' in frame
    curve = notebook.Curve(size=10)
    for step in range(1000):
        curve.put(step, float(step))
    assert 10 <= len(curve.values) <= 20 and curve.values == sorted(curve.values)
    curve.put(1001, math.nan)
    assert notebook.display_function() is None
