"""Leaks: every entry is called many times, with success and with errors; and every allocation fails once.

Each object of the extension holds a reference to its type, so that the references of a type count its objects.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import FAMILIES, tokens

import krait
from krait import _core, nn, ssd

CALLS = 1_000 if os.environ.get("KR_TEST_QUICK") else 10_000
TYPES = [thing for thing in vars(_core).values() if isinstance(thing, type) and not issubclass(thing, Exception)]

CONTEXT = krait.Context(threads=1)
MODEL = krait.new("mamba2", context=CONTEXT, seed=1, **{**FAMILIES["mamba2"], "n_layers": 1})
WEIGHT = MODEL.params["backbone.norm_f.weight"]
BLOCK = nn.Mamba2(8, state_rank=4, per_head_dim=4, context=CONTEXT)
STACK = nn.Layers("mamba1", 8, 1, state_rank=4, context=CONTEXT)
_, STATE = MODEL.forward(tokens(2, 3))
IDS = tokens(1, 3)
X = np.ones((2, 2), np.float32)
SEQUENCE = np.ones((1, 2, 8), np.float32)
TOKENIZER = krait.Tokenizer.bytes()
ARRAY = krait.Array(X)


def fails(function: Callable[[], Any]) -> Callable[[], None]:
    def call() -> None:
        try:
            function()
        except Exception:
            return
        raise AssertionError("the call did not fail")

    return call


def raise_lookup(*arguments: Any) -> None:
    raise LookupError


def generate(**options: Any) -> Any:
    return MODEL.generate([1, 2], max_tokens=1, stream=False, **options)  # type: ignore[call-overload]


def step_row() -> None:
    batch = _core.RowBatch(MODEL._core, TOKENIZER._core, max_rows=2)
    row = batch.create()
    batch.feed(row, "ab")
    batch.generate(row, stops=("x",), stop_ids=[3], logit_bias={1: 2.0}, max_tokens=2)
    copy = batch.fork(row)
    batch.cancel(row)
    batch.step()
    batch.destroy(copy)
    batch.stats()


ENTRIES: dict[str, tuple[Callable[[], Any], float]] = {  # call, share of CALLS
    "info": (krait.devices, 1),
    "config_defaults": (lambda: _core.config_defaults("mamba3"), 1),
    "Context": (lambda: krait.Context(threads=1), 0.1),
    "Context with threads": (lambda: krait.Context(threads=2), 0.01),
    "Context log": (lambda: krait.Context(threads=1, log=lambda level, text: None), 0.1),
    "Context error": (fails(lambda: krait.Context(isa="none")), 0.1),
    "Context log error": (fails(lambda: krait.Context(threads=1, log=raise_lookup)), 0.1),
    "Context.memory": (CONTEXT.memory, 1),
    "Context.seed": (lambda: CONTEXT.seed(1), 1),
    "Context.hold": (lambda: CONTEXT.__enter__().__exit__(), 1),
    "Array": (lambda: krait.Array(X), 1),
    "Array error": (fails(lambda: krait.Array(np.zeros(2, complex))), 1),
    "Array.attributes": (lambda: (ARRAY.shape, ARRAY.strides, ARRAY.dtype_name, repr(ARRAY), ARRAY.nbytes), 1),
    "Array.numpy": (ARRAY.numpy, 1),
    "Array.__array__": (lambda: np.asarray(ARRAY), 1),
    "Array buffer error": (fails(lambda: memoryview(krait.Array(X.T)).cast("B")), 1),
    "Array.read": (lambda: WEIGHT.array.read(np.empty(16, np.float64)), 1),
    "Array.read error": (fails(lambda: WEIGHT.array.read(np.empty(3, np.float32))), 1),
    "__dlpack__": (lambda: ARRAY.__dlpack__(max_version=(1, 0)), 1),
    "__dlpack__ old": (lambda: ARRAY.__dlpack__(), 1),
    "__dlpack__ copy": (lambda: np.from_dlpack(ARRAY, copy=True), 1),
    "__dlpack__ error": (fails(lambda: ARRAY.__dlpack__(dl_device=(2, 0))), 1),
    "from_dlpack": (lambda: krait.from_dlpack(X), 1),
    "from_dlpack error": (fails(lambda: krait.from_dlpack(np.zeros(2, np.uint8))), 1),
    "np.from_dlpack": (lambda: np.from_dlpack(ARRAY), 1),
    "gate": (lambda: ssd.gate(X, X, context=CONTEXT), 1),
    "gate error": (fails(lambda: ssd.gate(X, np.ones(3, np.float32), context=CONTEXT)), 1),
    "vjp": (lambda: ssd.vjp(ssd.gate, X, X, context=CONTEXT)[1](X), 0.5),
    "tape error": (fails(lambda: _core.op(_core.Tape(CONTEXT), "gate", (None, None))), 1),
    "Block": (lambda: nn.Mamba1(4, state_rank=2, context=CONTEXT), 0.1),
    "Block error": (fails(lambda: nn.Mamba1(-4, context=CONTEXT)), 0.1),
    "Block field error": (fails(lambda: nn.Mamba1(4, width=3, context=CONTEXT)), 0.5),
    "Block.forward": (lambda: BLOCK.step(SEQUENCE[:, 0], BLOCK(SEQUENCE)[1]), 0.3),
    "Block.vjp": (lambda: BLOCK.vjp(SEQUENCE)[1](SEQUENCE), 0.2),
    "Layers.forward": (lambda: STACK.step(SEQUENCE[:, 0], STACK(SEQUENCE)[1]), 0.3),
    "Layers.vjp": (lambda: STACK.vjp(SEQUENCE)[1](SEQUENCE), 0.2),
    "Layers schedule": (lambda: nn.Layers("mamba1", 4, 2, schedule=[0, 1, 0], context=CONTEXT), 0.1),
    "Layers schedule error": (fails(lambda: nn.Layers("mamba1", 4, 2, schedule=[0, "a"], context=CONTEXT)), 0.3),
    "Model": (lambda: krait.new("mamba1", context=CONTEXT, d_model=4, n_layers=1, state_rank=2, vocab_size=8), 0.1),
    "Model error": (fails(lambda: krait.new("mamba1", context=CONTEXT, d_model=4)), 0.1),
    "Model field error": (fails(lambda: krait.new("mamba1", context=CONTEXT, d_model="4")), 0.1),
    "Model.share": (lambda: MODEL.share(CONTEXT), 0.3),
    "Model.config": (lambda: (MODEL.config, MODEL.memory(), repr(MODEL)), 0.1),
    "Model.logits": (lambda: MODEL.logits(IDS), 0.3),
    "Model.logits error": (fails(lambda: MODEL.logits([[999]])), 0.3),
    "Model.forward": (lambda: MODEL.forward(IDS, MODEL.state(1)), 0.3),
    "Model.step": (lambda: MODEL.step([1, 2], STATE), 0.3),
    "Model.step in place": (lambda: MODEL.step([1, 2], STATE, in_place=True), 0.3),
    "Model.step error": (fails(lambda: MODEL.step([1], STATE)), 0.3),
    "Model.loss": (lambda: MODEL.loss_and_grads(IDS), 0.1),
    "Model.loss error": (fails(lambda: MODEL.loss(IDS, dropout=3.0)), 0.2),
    "State": (lambda: (STATE.select([1]), STATE.copy(), krait.State.join([STATE, STATE])), 0.3),
    "State error": (fails(lambda: STATE.select([7])), 0.5),
    "State arrays": (lambda: [STATE[name] for name in STATE], 0.5),
    "State bytes": (lambda: MODEL.load_state(STATE.to_bytes()), 0.02),
    "State bytes error": (fails(lambda: MODEL.load_state(b"nothing")), 0.02),
    "Params": (lambda: [p.numpy() for p in MODEL.params.values()], 0.1),
    "Parameter.write": (lambda: WEIGHT.write(np.ones(16)), 0.5),
    "Parameter.write error": (fails(lambda: WEIGHT.write(np.ones(3))), 0.5),
    "Params.pack": (lambda: (MODEL.params.pack(), MODEL.params.unpack()), 0.05),
    "Tokenizer": (lambda: krait.Tokenizer.bytes(), 0.1),
    "Tokenizer error": (fails(lambda: krait.Tokenizer.parse("{}")), 0.1),
    "Tokenizer.encode": (lambda: TOKENIZER.decode(TOKENIZER.encode("text")), 1),
    "Tokenizer.encode error": (fails(lambda: TOKENIZER.encode(3)), 1),  # type: ignore[arg-type]
    "Tokenizer.token": (lambda: (TOKENIZER.token(3), TOKENIZER.token(-1), TOKENIZER.find("x")), 1),
    "generate": (generate, 0.1),
    "generate callbacks": (lambda: generate(process=lambda i, x: None, constrain=lambda i: [1]), 0.1),
    "generate callback error": (fails(lambda: generate(process=raise_lookup)), 0.1),
    "generate scores": (lambda: generate(score_prompt=True, top_logprobs=3), 0.1),
    "generate error": (fails(lambda: generate(temperature=-1)), 0.1),
    "RowBatch": (step_row, 0.1),
    "RowBatch error": (fails(lambda: _core.RowBatch(MODEL._core, max_rows=-1)), 0.1),
}


def live() -> tuple[list[int], int]:
    gc.collect()
    return [sys.getrefcount(kind) for kind in TYPES], CONTEXT.memory()["host"]["live_blocks"]


@pytest.mark.parametrize("name", ENTRIES)
def test_calls_leak_nothing(name: str) -> None:
    call, share = ENTRIES[name]
    count = max(20, int(CALLS * share))
    for _ in range(10):
        call()
    before, python_before = live(), sys.getallocatedblocks()
    for _ in range(count):
        call()
    after, python_after = live(), sys.getallocatedblocks()
    changed = {k.__name__: (a, b) for k, a, b in zip(TYPES, before[0], after[0]) if a != b}
    assert not changed, f"objects before and after {count} calls: {changed}"
    assert before[1] == after[1], f"blocks of the context: {before[1]} before, {after[1]} after"
    # The interpreter's own caches move by some blocks; a leak of one block a call is seen.
    assert python_after - python_before < count // 2 + 10, f"{python_after - python_before} blocks of Python"


# ---- every allocation of the library fails once ----

FAILING: dict[str, Callable[[], Any]] = {
    "new": lambda: krait.new("mamba2", context=CONTEXT, **FAMILIES["mamba2"]),
    "share": lambda: MODEL.share(CONTEXT),
    "forward": lambda: MODEL.forward(IDS),
    "step": lambda: MODEL.step([1, 2], STATE),
    "loss": lambda: MODEL.loss_and_grads(IDS),
    "select": lambda: STATE.select([0, 1, 1]),
    "join": lambda: krait.State.join([STATE, STATE]),
    "copy": lambda: STATE.copy(),
    "bytes": lambda: MODEL.load_state(STATE.to_bytes()),
    "pack": lambda: (MODEL.params.pack(), MODEL.params.unpack()),
    "generate": lambda: generate(stop=["stop"], logit_bias={1: 1.0}),
    "ssd": lambda: ssd.vjp(ssd.ssd, SEQUENCE[..., None], SEQUENCE, -SEQUENCE[0, 0], SEQUENCE[:, :, None],
                           SEQUENCE[:, :, None], context=CONTEXT)[1](SEQUENCE[..., None]),
    "block": lambda: nn.Mamba2(8, state_rank=4, per_head_dim=4, context=CONTEXT).vjp(SEQUENCE)[1](SEQUENCE),
    "stack": lambda: nn.Layers("mamba1", 8, 2, state_rank=4, context=CONTEXT)(SEQUENCE),
}  # fmt: skip


@pytest.mark.parametrize("name", FAILING)
def test_every_allocation_may_fail(name: str) -> None:
    call = FAILING[name]
    call()
    before = live()
    failures = 0
    for n in range(1, 2000):
        CONTEXT._fail_allocation(n)
        try:
            call()
        except krait.OutOfMemoryError as error:
            failures += 1
            assert str(error)
        except krait.Error as error:
            # A row of a batch fails as an event, with the status of what failed.
            raise AssertionError(f"allocation {n}: {type(error).__name__}: {error}") from error
        else:
            CONTEXT._fail_allocation(0)
            break
        finally:
            CONTEXT._fail_allocation(0)
    assert failures > 0 and n < 1999
    call()
    after = live()
    assert before[0] == after[0] and abs(after[1] - before[1]) <= 1, "an error path keeps memory"


# ---- allocations of the interpreter ----


def op_of_core() -> Any:
    tape = _core.Tape(CONTEXT, grad=True)
    x = tape.leaf(ARRAY)
    y = _core.op(tape, "gate", (x, tape.view(ARRAY)))[0]
    tape.backward([y], [None])
    return tape.grad(x), y.shape, memoryview(y), y.__dlpack__(max_version=(1, 0))


def call_of_core() -> Any:
    tape = _core.Tape(CONTEXT)
    return MODEL._core.call(tape, "forward", tape.view(IDS_ARRAY), None, last=True)


def loss_of_core() -> Any:
    tape = _core.Tape(CONTEXT, grad=True)
    return MODEL._core.loss(tape, ids=tape.view(IDS_ARRAY), out=GRADIENTS)


IDS_ARRAY = krait.Array(IDS)
GRADIENTS = [np.empty(p.shape, np.float32) for p in MODEL.params.values()]
FIELDS = {"d_model": 4, "n_layers": 2, "state_rank": 2, "vocab_size": 8, "schedule": [0, 1, 0]}

# Calls of the extension alone: NumPy keeps memory on some of its own error paths.
OF_CORE: dict[str, Callable[[], Any]] = {
    "Context": lambda: (_core.Context(threads=1, log=print_nothing), CONTEXT.memory(), repr(CONTEXT)),
    "Array": lambda: (_core.Array(X), repr(ARRAY), ARRAY.strides, ARRAY.__dlpack_device__()),
    "from_dlpack": lambda: _core.from_dlpack(ARRAY),
    "copy": lambda: ARRAY.__dlpack__(copy=True),
    "op": op_of_core,
    "call": call_of_core,
    "loss": loss_of_core,
    "model": lambda: _core.create_model(CONTEXT, family="mamba1", fields=FIELDS).info(),
    "measure": lambda: _core.create_model(CONTEXT, family="mamba1", fields=FIELDS, measure=True),
    "share": lambda: (MODEL._core.share(CONTEXT), MODEL._core.config(None), MODEL._core.params().rows()),
    "block": lambda: _core.Block(CONTEXT, "mamba1", {"d_model": 4}, {"n_layers": 1}).params().describe(),
    "state": lambda: (STATE._core.select([1, 0]), STATE._core.names(), STATE._core.array(0, 0), STATE._core.copy()),
    "join": lambda: STATE._core.join([STATE._core, STATE._core]),
    "tokenizer": lambda: (_core.Tokenizer().encode("text"), TOKENIZER._core.token(3)),
    "rows": step_row,
    "defaults": lambda: (_core.config_defaults("mamba2"), _core.info("devices")),
}


def print_nothing(level: int, text: str) -> None:
    pass


@pytest.mark.parametrize("name", OF_CORE)
def test_allocations_of_python_may_fail(name: str) -> None:
    testcapi = pytest.importorskip("_testcapi")
    call = OF_CORE[name]
    call()
    before = live()
    failures = 0
    for n in range(1, 3000):
        failed = True
        testcapi.set_nomemory(n, n + 1)
        try:
            call()
            failed = False
        except MemoryError:
            failures += 1
        finally:
            testcapi.remove_mem_hooks()
        if not failed and failures > 5 and n > 200:
            break
    assert failures > 0
    changed = {k.__name__: (a, b) for k, a, b in zip(TYPES, before[0], live()[0]) if a != b}
    assert not changed, f"objects before and after: {changed}"


def test_a_result_outlives_everything(tmp_path: Path) -> None:
    context = krait.Context(threads=2)
    m = krait.new("mamba2", context=context, **FAMILIES["mamba2"])
    _, s = m.forward(IDS)
    kept = [s["layers.0.ssm"], m.params["backbone.norm_f.weight"].numpy(), np.from_dlpack(s.array("layers.0.conv"))]
    want = [k.copy() for k in kept]
    del m, s, context
    gc.collect()
    junk = [np.ones(1000, np.float32) for _ in range(200)]
    assert all(np.array_equal(k, w) for k, w in zip(kept, want)) and junk
