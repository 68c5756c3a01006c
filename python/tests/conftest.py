"""What the tests share: small models, a reader of safetensors files, comparison with a reason."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["KR_PYTHON_TESTING"] = "1"  # before krait is imported: Context._fail_allocation works

import numpy as np
import pytest

import krait

# The tests may have been copied; KR_SOURCE is then the source tree.
ROOT = Path(os.environ.get("KR_SOURCE") or Path(__file__).resolve().parents[2])
GOLDEN = ROOT / "tests" / "golden"

FAMILIES = {
    "mamba1": dict(d_model=16, n_layers=2, state_rank=4, vocab_size=256),
    "mamba2": dict(d_model=16, n_layers=2, state_rank=8, per_head_dim=8, vocab_size=256),
    "mamba3": dict(d_model=16, n_layers=2, state_rank=8, per_head_dim=8, vocab_size=256),
}
NUMPY = {"F32": np.float32, "F64": np.float64, "I64": np.int64, "I32": np.int32}


def small(family: str = "mamba2", **fields: Any) -> krait.Model:
    """A model of a few thousand weights, the same in every run."""
    return krait.new(family, seed=7, threads=2, **{**FAMILIES[family], **fields})


def tokens(batch: int, length: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (batch, length))


def read_safetensors(path: Path) -> dict[str, np.ndarray]:
    """The tensors of a file, without the library's own reader."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    found = {}
    for name, entry in header.items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            flat = np.frombuffer(data[8 + size + begin : 8 + size + end], NUMPY[entry["dtype"]])
            found[name] = flat.reshape(entry["shape"])
    return found


def assert_near(got: Any, want: Any, tolerance: float, what: str = "") -> None:
    """max|got - want| <= tolerance max|want|, or the worst element with its index."""
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    assert got.shape == want.shape, f"{what}: shape {got.shape}, expected {want.shape}"
    scale = max(float(np.abs(want).max(initial=0.0)), 1e-30)
    error = np.abs(got - want)
    assert np.isfinite(got).all() or not np.isfinite(want).all(), f"{what}: not finite"
    if error.size and error.max() > tolerance * scale:
        at = np.unravel_index(int(error.argmax()), error.shape)
        raise AssertionError(
            f"{what}: worst element {tuple(map(int, at))}: {got[at]!r}, expected {want[at]!r}; "
            f"error {error.max() / scale:.2e} of the maximum, at most {tolerance:.0e}"
        )


def bpe_text() -> str:
    """A tokenizer.json: the 256 bytes in the alphabet of GPT-2, the merge of a and b, and one special token."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in shown]
    letters = {**{byte: chr(byte) for byte in shown}, **{byte: chr(256 + i) for i, byte in enumerate(hidden)}}
    return json.dumps({
        "version": "1.0",
        "added_tokens": [{"id": 257, "content": "<|endoftext|>", "special": True}],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
        "decoder": {"type": "ByteLevel"},
        "model": {
            "type": "BPE",
            "vocab": {**{letter: byte for byte, letter in letters.items()}, "ab": 256},
            "merges": ["a b"],
        },
    })  # fmt: skip


@pytest.fixture(params=sorted(FAMILIES))
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def model() -> krait.Model:
    return small()


@pytest.fixture
def live_blocks() -> Callable[[krait.Context], int]:
    return lambda context: context.memory()["host"]["live_blocks"]
