"""pickle, copies, multiprocessing by spawn and by fork."""

from __future__ import annotations

import copy
import multiprocessing
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import bpe_text, small, tokens

import krait
from krait import nn


def again(thing: Any, protocol: int = 5) -> Any:
    return pickle.loads(pickle.dumps(thing, protocol))


def test_the_end_of_a_text_survives(tmp_path: Path) -> None:
    m = small(vocab_size=300)
    assert m.eos == []
    m.tokenizer = krait.Tokenizer.parse(bpe_text())
    assert m.eos == [257]
    m.save(tmp_path / "m")
    for one in (again(m), again(krait.load(tmp_path / "m")), copy.deepcopy(m)):
        assert one.eos == [257]
        assert one.generate("", constrain=lambda ids: [65, 257], max_tokens=99, seed=2, stream=False).finish == "stop"
    with pytest.raises(krait.ArgumentError, match="257|258 tokens, but the model has 256"):
        small().tokenizer = m.tokenizer


@pytest.mark.parametrize("protocol", range(2, 6))
def test_tokenizers(protocol: int) -> None:
    assert again(krait.Tokenizer.bytes(), protocol).encode("a€") == [97, 226, 130, 172]


def test_models_by_their_files(model: krait.Model) -> None:
    other = again(model)
    assert np.array_equal(other.logits([[1, 2]]), model.logits([[1, 2]]))
    assert other.tokenizer.vocab_size == 256 and repr(other).split("·")[:4] == repr(model).split("·")[:4]
    deep = copy.deepcopy(model)
    deep.params["backbone.norm_f.weight"][:] = 0
    assert not np.array_equal(deep.logits([[1]]), model.logits([[1]])) and copy.copy(model) is model


def test_models_by_their_folder(model: krait.Model, tmp_path: Path) -> None:
    model.save(tmp_path / "m")
    loaded = krait.load(tmp_path / "m")
    data = pickle.dumps(loaded)
    assert len(data) < 1000, "a loaded model is pickled as a reference to its folder"
    assert np.array_equal(pickle.loads(data).logits([[1]]), model.logits([[1]]))
    loaded.params["backbone.norm_f.weight"][:] = 2
    data = pickle.dumps(loaded)
    assert len(data) > 10000, "a model that was changed is pickled with its weights"
    assert np.array_equal(pickle.loads(data).logits([[1]]), loaded.logits([[1]]))


def test_weights_travel_next_to_a_pickle_of_protocol_5():
    model = krait.new("mamba2", d_model=32, n_layers=1, vocab_size=256, state_rank=16, per_head_dim=16)
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(model, 5, buffer_callback=buffers.append)
    assert len(buffers) == 1 and len(data) < 4000 < buffers[0].raw().nbytes
    made = pickle.loads(data, buffers=[bytearray(buffers[0].raw())])
    assert np.array_equal(made.logits([[1, 2, 3]]), model.logits([[1, 2, 3]]))
    with pytest.raises(krait.Error):
        pickle.loads(data, buffers=[b"not a file of weights"])


def test_states(family: str) -> None:
    m = small(family)
    _, s = m.forward(tokens(2, 5))
    other = again(s)
    assert all(np.array_equal(other[name], s[name]) for name in s) and len(other) == len(s)
    want, got = m.step([1, 2], s)[0], other.model.step([1, 2], other)[0]
    assert np.array_equal(want, got)
    model, state = again((m, s))
    assert state.model is model


def test_blocks_and_stacks() -> None:
    x = np.ones((1, 3, 16), np.float32)
    for module in (nn.Mamba3(16, state_rank=8, per_head_dim=8), nn.Layers("mamba1", 16, 2)):
        assert np.array_equal(again(module)(x)[0], module(x)[0])


def generate_in_child(model: krait.Model) -> list[int]:
    made: list[int] = model.generate([1, 2], max_tokens=5, temperature=0, stream=False).ids  # type: ignore[call-overload]
    return made


def test_spawn(model: krait.Model) -> None:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(generate_in_child, (model,)) == generate_in_child(model)


FORK = """
import os, sys, threading
import numpy as np
import krait
m = krait.new("mamba2", d_model=16, n_layers=1, vocab_size=256, per_head_dim=8, state_rank=8, threads=2)
want = m.logits([[1, 2]])
_, state = m.forward([[1, 2]])
{before}
pid = os.fork()
if pid == 0:
    code = 1
    try:
        {child}
        code = 0
    finally:
        sys.stdout.flush()
        {leave}
_, status = os.waitpid(pid, 0)
{after}
assert np.array_equal(m.logits([[1, 2]]), want)
print("parent", os.waitstatus_to_exitcode(status))
"""


def fork(child: str, before: str = "", after: str = "", leave: str = "sys.exit(code)") -> str:
    code = FORK.format(before=before, child=child.replace("\n", "\n        "), after=after, leave=leave)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")


@needs_fork
def test_a_forked_child_ends_without_hanging() -> None:
    # It runs Python's whole shutdown, which destroys the models and contexts of the parent.
    assert fork("print('child')") == "child\nparent 0\n"


@needs_fork
def test_a_forked_child_is_refused_the_contexts_of_its_parent() -> None:
    child = "try: m.logits([[1]])\nexcept krait.StateError as e: print('refused', 'fork' in str(e))"
    assert fork(child) == "refused True\nparent 0\n"


@needs_fork
def test_a_forked_child_may_share_the_model_of_its_parent() -> None:
    child = "print(np.array_equal(m.share(threads=2).logits([[1, 2]]), want))"
    assert fork(child) == "True\nparent 0\n"


@needs_fork
def test_a_forked_child_has_contexts_of_its_own() -> None:
    child = (
        "k = krait.new('mamba2', d_model=16, n_layers=1, vocab_size=256, per_head_dim=8, threads=2)\n"
        "print(k.logits([[1]]).shape, krait.ssd.softplus([0.0]).shape)"
    )
    assert fork(child) == "(1, 1, 256) (1,)\nparent 0\n"


@needs_fork
def test_a_fork_while_another_thread_computes() -> None:
    # The child has a copy of the lock that the other thread held: it must neither wait for it nor crash.
    before = (
        "stop = threading.Event()\n"
        "def work():\n"
        "    while not stop.is_set(): m.logits(np.ones((4, 64), int))\n"
        "thread = threading.Thread(target=work); thread.start()\n"
    )
    child = "try: m.logits([[1]])\nexcept krait.StateError: print('refused')\ndel state"
    out = fork(child, before, "stop.set(); thread.join()", "os._exit(code)")
    assert out == "refused\nparent 0\n"


@needs_fork
def test_a_child_of_fork_shares_as_often_as_it_likes() -> None:
    child = "for _ in range(3): print(m.share(threads=1).logits([[1]]).shape)"
    assert fork(child) == "(1, 1, 256)\n" * 3 + "parent 0\n"


@needs_fork
def test_multiprocessing_by_fork() -> None:
    code = (
        "import multiprocessing as mp, krait\n"
        "m = krait.new('mamba2', d_model=16, n_layers=1, vocab_size=256, per_head_dim=8, threads=2)\n"
        "m.logits([[1]])\n"
        "def work(i): return m.share(threads=1).logits([[i]]).shape\n"
        "with mp.get_context('fork').Pool(2) as pool: print(pool.map(work, [1, 2]))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "[(1, 1, 256), (1, 1, 256)]\n", done.stderr
