"""Text generation: samplers, stops, callbacks, rows that come and go, Ctrl-C."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from conftest import small

import krait


def greedy(m: krait.Model, ids: list[int], count: int) -> list[int]:
    """Generation by hand: the largest logit of each step."""
    y, s = m.forward([ids], last=True)
    made = []
    for _ in range(count):
        made.append(int(y[0].argmax()))
        y, s = m.step([made[-1]], s)
    return made


def test_greedy(family: str) -> None:
    m = small(family)
    r = m.generate([72, 105], max_tokens=6, temperature=0, stream=False)
    assert r.ids == greedy(m, [72, 105], 6)
    assert r.finish == "length" and len(r.logprobs) == 6 and r.error is None
    assert m.tokenizer is not None and r.text == m.tokenizer.decode(r.ids)


def test_streaming_is_the_whole(model: krait.Model) -> None:
    g = model.generate("Once upon", max_tokens=20, seed=3)
    pieces = list(g)
    whole = model.generate("Once upon", max_tokens=20, seed=3, stream=False)
    assert "".join(pieces) == whole.text == g.text
    assert g.results[0].ids == whole.ids
    assert g.stats["tokens"] == 20


def test_log_probabilities(model: krait.Model) -> None:
    r = model.generate([65, 66], max_tokens=4, top_logprobs=3, score_prompt=True, stream=False, seed=5)
    ids = [65, 66, *r.ids]
    logits = model.logits([ids])[0].astype(np.float64)
    p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    # The model reads the prompt in pieces and steps here, at once there; f32.
    assert r.logprobs == pytest.approx([p[i + 1, t] for i, t in enumerate(r.ids)], abs=1e-4)
    assert [i for i, _ in r.prompt_logprobs] == [66]
    assert r.prompt_logprobs[0][1] == pytest.approx(p[0, 66], abs=1e-4)
    for i, top in enumerate(r.top):
        assert len(top) == 3
        assert [lp for _, lp in top] == pytest.approx(sorted(p[i + 1], reverse=True)[:3], abs=1e-4)


def test_seeds_and_streams(model: krait.Model) -> None:
    def ids(**options: object) -> list[int]:
        made: list[int] = model.generate("a", max_tokens=8, stream=False, **options).ids  # type: ignore[call-overload]
        return made

    assert ids(seed=1) == ids(seed=1) != ids(seed=2)
    assert ids(seed=1, random_stream=0) != ids(seed=1, random_stream=1)
    results = model.generate("a", samples=3, max_tokens=8, stream=False, seed=1)
    assert len({tuple(r.ids) for r in results}) == 3 and results[0].ids == ids(seed=1)


def test_a_row_does_not_depend_on_others(model: krait.Model) -> None:
    prompts = ["a", "Once upon a time", [1, 2, 3], np.array([7, 8]), "the"]
    together = model.generate(prompts, max_tokens=9, stream=False, seed=4, max_rows=2)
    for i, prompt in enumerate(prompts):
        alone = model.generate(prompt, max_tokens=9, stream=False, seed=4, random_stream=i)
        assert together[i].ids == alone.ids and together[i].finish == "length"


def test_rows_come_and_go(model: krait.Model) -> None:
    g = model.generate(["first"], max_tokens=30, seed=1)
    assert [next(g)[0] for _ in range(3)] == [0, 0, 0]
    second = g.add("second", max_tokens=5, seed=1)
    seen = {next(g)[0] for _ in range(8)}
    assert seen == {0, second}
    g.cancel(0)
    rest = {row for row, _ in g}
    assert rest <= {second}
    assert g.results[0].finish == "cancelled" and g.results[second].finish == "length"
    alone = model.generate("second", max_tokens=5, seed=1, random_stream=1, stream=False)
    assert g.results[second].ids == alone.ids
    third = g.add("third", max_tokens=2)
    assert [row for row, _ in g] == [third] * len(g.results[third].text) or g.results[third].finish == "length"


def test_stops(model: krait.Model) -> None:
    forced = list(b"abcXYdef")
    choose = lambda ids: [forced[len(ids)]]  # noqa: E731
    r = model.generate("p", constrain=choose, stop="XY", stream=False)
    assert (r.text, r.finish) == ("abc", "stop")
    r = model.generate("p", constrain=choose, stop=["nothing", "de"], max_tokens=8, stream=False)
    assert (r.text, r.finish) == ("abcXY", "stop")
    r = model.generate("p", constrain=choose, stop_ids=[ord("X")], stream=False)
    assert (r.text, r.finish, r.ids) == ("abc", "stop", list(b"abcX"))


def test_text_comes_in_whole_characters(model: krait.Model) -> None:
    forced = "a€b".encode()
    pieces = list(model.generate("p", constrain=lambda ids: [forced[len(ids)]], max_tokens=len(forced)))
    assert pieces == ["a", "€", "b"]


def test_constraints(model: krait.Model) -> None:
    r = model.generate("p", constrain=lambda ids: [97, 98], max_tokens=20, stream=False)
    assert set(r.text) == {"a", "b"}
    mask = np.zeros(256, bool)
    mask[[99, 255]] = True
    r = model.generate("p", constrain=lambda ids: mask, max_tokens=20, stream=False)
    assert set(r.ids) == {99, 255}
    seen: list[list[int]] = []
    model.generate("p", constrain=lambda ids: (seen.append(ids.tolist()), [1, 2])[1], max_tokens=3, stream=False)
    assert [len(ids) for ids in seen] == [0, 1, 2]


def test_processors(model: krait.Model) -> None:
    def only_x(ids: np.ndarray, logits: np.ndarray) -> None:
        logits[:] = -np.inf
        logits[ord("x")] = 0

    assert model.generate("p", process=only_x, max_tokens=3, stream=False).text == "xxx"
    shifted = model.generate("p", process=lambda ids, logits: logits + 5, max_tokens=5, seed=2, stream=False)
    assert shifted.ids == model.generate("p", max_tokens=5, seed=2, stream=False).ids


def test_bias_and_penalties(model: krait.Model) -> None:
    r = model.generate("p", logit_bias={65: 100.0}, max_tokens=4, stream=False)
    assert r.text == "AAAA"
    r = model.generate("p", logit_bias={i: -math.inf for i in range(256) if i not in (65, 66)}, max_tokens=9, stream=False)
    assert set(r.text) <= {"A", "B"}
    r = model.generate("p", frequency_penalty=1e6, max_tokens=30, temperature=0, stream=False)
    assert len(set(r.ids)) == 30
    assert model.generate("p", top_k=1, max_tokens=5, stream=False).ids == model.generate(
        "p", temperature=0, max_tokens=5, stream=False
    ).ids


def test_bad_options_name_the_field(model: krait.Model) -> None:
    for options, word in (
        ({"temperature": -1.0}, "temperature"), ({"top_p": 2.0}, "top_p"), ({"max_tokens": -5}, "max_tokens"),
        ({"logit_bias": {999: 1.0}}, "bias"), ({"top_k": -1}, "top_k"),
    ):  # fmt: skip
        with pytest.raises(krait.ArgumentError, match=word):
            model.generate("a", **options)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="temperature is of type str"):
        model.generate("a", temperature="hot")  # type: ignore[call-overload]
    with pytest.raises(krait.ArgumentError, match="empty"):
        model.generate("")
    with pytest.raises(krait.ArgumentError, match="256|300"):
        model.generate([300], max_tokens=1, stream=False)


def test_without_a_tokenizer_rows_give_ids() -> None:
    m = small(vocab_size=50)
    assert m.tokenizer is None
    g = m.generate([1, 2], max_tokens=4, temperature=0)
    assert list(g) == g.results[0].ids and g.text == ""
    with pytest.raises(krait.ArgumentError, match="no tokenizer"):
        m.generate("text")


def test_exceptions_in_callbacks_are_raised(model: krait.Model) -> None:
    def fail(*arguments: object) -> None:
        raise LookupError("mine")

    for name in ("process", "constrain"):
        with pytest.raises(LookupError, match="mine"):
            model.generate("a", max_tokens=3, stream=False, **{name: fail})  # type: ignore[call-overload]
    with pytest.raises(krait.ShapeError, match="process returned"):
        model.generate("a", process=lambda ids, logits: logits[:3], stream=False)
    with pytest.raises(krait.ArgumentError, match="not below 256"):
        model.generate("a", constrain=lambda ids: [256], stream=False)
    with pytest.raises(krait.Error, match="no token is left"):
        model.generate("a", constrain=lambda ids: [], stream=False)
    assert model.generate("a", max_tokens=2, stream=False).finish == "length"


def test_a_callback_may_call_the_library(model: krait.Model) -> None:
    def process(ids: np.ndarray, logits: np.ndarray) -> None:
        with pytest.raises(krait.ShapeError):
            model.logits([1])
        logits += model.logits([[1]])[0, 0]

    assert model.generate("a", process=process, max_tokens=3, stream=False).finish == "length"


def test_an_error_of_one_row_leaves_the_others(model: krait.Model) -> None:
    g = model.generate(["a"], max_tokens=6, temperature=0)
    bad = g.add("b", process=lambda ids, logits: logits * math.nan)
    results = g.run()
    assert results[bad].finish == "error" and isinstance(results[bad].error, krait.Error)
    assert results[0].ids == model.generate("a", max_tokens=6, temperature=0, stream=False).ids


def test_weights_may_change_between_tokens(model: krait.Model) -> None:
    g = model.generate([1], max_tokens=4, temperature=0)
    next(g)
    model.params["backbone.norm_f.weight"][:] = 0
    assert len(list(g)) <= 3 and len(g.results[0].ids) == 4


def test_ctrl_c() -> None:
    code = (
        "import krait\n"
        "m = krait.new('mamba2', d_model=64, n_layers=2, vocab_size=256, threads=1)\n"
        "g = m.generate('a', max_tokens=-1)\n"
        "print('ready', flush=True)\n"
        "try:\n"
        "    for piece in g: pass\n"
        "except KeyboardInterrupt:\n"
        "    print('stopped', len(g.results[0].ids) > 0, m.generate('b', max_tokens=2, stream=False).finish)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None and child.stdout.readline() == "ready\n"
    time.sleep(0.3)
    os.kill(child.pid, signal.SIGINT)
    out, _ = child.communicate(timeout=60)
    assert out == "stopped True length\n" and child.returncode == 0
