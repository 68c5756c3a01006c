"""Threads: one context after another, several contexts over one model, the GIL, objects that die on other threads."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from conftest import small, tokens

import krait


def in_threads(count: int, work: Callable[[int], None]) -> None:
    failures: list[BaseException] = []

    def run(i: int) -> None:
        try:
            work(i)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive(), "a thread hangs"
    if failures:
        raise failures[0]


def test_threads_take_turns_with_one_context(model: krait.Model) -> None:
    ids = [tokens(2, 20, seed) for seed in range(4)]
    want = [model.logits(row) for row in ids]

    def work(i: int) -> None:
        for _ in range(20):
            assert np.array_equal(model.logits(ids[i]), want[i])
            try:
                model.logits([i])
            except krait.ShapeError as error:
                assert "x [1] has rank 1" in str(error)

    in_threads(4, work)


def test_threads_share_a_model_at_the_same_time(model: krait.Model) -> None:
    ids = tokens(2, 20)
    want = model.generate("a", max_tokens=12, seed=1, stream=False).text

    def work(i: int) -> None:
        mine = model.share(threads=1)
        for _ in range(5):
            assert np.array_equal(mine.logits(ids), mine.logits(ids))
            assert mine.generate("a", max_tokens=12, seed=1, stream=False).text == want

    in_threads(4, work)
    gc.collect()
    model.params["backbone.norm_f.weight"][:] = 1  # no longer shared


def test_the_gil_is_released_while_a_model_computes() -> None:
    model = small(d_model=128, n_layers=4)
    ids = tokens(4, 256)
    done = threading.Event()
    counted = 0

    def work() -> None:
        for _ in range(8):
            model.logits(ids)
        done.set()

    thread = threading.Thread(target=work)
    thread.start()
    longest, last = 0.0, time.perf_counter()
    while not done.is_set():
        counted += 1
        now = time.perf_counter()
        longest, last = max(longest, now - last), now
        time.sleep(0)
    thread.join()
    assert counted > 100, "this thread did not run while the other computed"


def test_objects_may_die_on_other_threads_while_their_context_computes() -> None:
    model = small(d_model=64)
    context = model.context
    ids = tokens(4, 128)
    model.forward(ids)
    stop = threading.Event()

    def compute() -> None:
        while not stop.is_set():
            model.logits(ids)

    thread = threading.Thread(target=compute)
    thread.start()
    try:
        for _ in range(20):
            states: list[Any] = [model.state(2) for _ in range(8)]
            del states  # while the other thread is in the context, most of the time
    finally:
        stop.set()
        thread.join()
    model.forward(ids)
    gc.collect()
    before = context.memory()["host"]["live_blocks"]
    for _ in range(3):
        model.forward(ids)
    assert context.memory()["host"]["live_blocks"] == before


def test_a_generation_moves_between_threads(model: krait.Model) -> None:
    want = model.generate("a", max_tokens=12, seed=1, stream=False).ids
    g = model.generate("a", max_tokens=12, seed=1)

    def work(i: int) -> None:
        for _ in zip(range(4), g):
            pass

    for _ in range(3):
        in_threads(1, work)
    g.run()
    assert g.results[0].ids == want


def test_vjp_is_of_its_thread() -> None:
    x = np.ones((8, 8), np.float32)

    def work(i: int) -> None:
        for _ in range(50):
            if i % 2:
                y, backward = krait.ssd.vjp(krait.ssd.gate, x, x)
                assert backward(x)["x"].shape == (8, 8)
            else:
                krait.ssd.gate(x, x)

    in_threads(4, work)


def test_holding_a_context_keeps_others_out() -> None:
    model = small()
    order: list[str] = []
    inside = threading.Event()

    def other() -> None:
        inside.wait()
        model.logits([[1]])
        order.append("other")

    thread = threading.Thread(target=other)
    thread.start()
    with model.context:
        inside.set()
        time.sleep(0.05)
        model.logits([[1]])
        order.append("holder")
    thread.join()
    assert order == ["holder", "other"]
