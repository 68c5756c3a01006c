"""krait.nn: blocks and stacks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from conftest import assert_near

import krait
from krait import nn

BLOCKS: dict[str, Any] = {
    "mamba1": lambda **f: nn.Mamba1(16, state_rank=4, **f),
    "mamba2": lambda **f: nn.Mamba2(16, state_rank=8, per_head_dim=8, **f),
    "mamba3": lambda **f: nn.Mamba3(16, state_rank=8, per_head_dim=8, **f),
    "mimo": lambda **f: nn.Mamba3(16, state_rank=8, per_head_dim=8, is_mimo=True, mimo_rank=2, **f),
    "quaternion": lambda **f: nn.Mamba3(16, state_rank=8, per_head_dim=8, rotation="quaternion", **f),
}
NEAR = 2e-5  # f32, sums of a few hundred terms in another order


def sequence(batch: int = 2, length: int = 6, dtype: Any = np.float64) -> np.ndarray:
    return np.random.default_rng(5).standard_normal((batch, length, 16)).astype(dtype)


@pytest.mark.parametrize("name", BLOCKS)
def test_pieces_and_steps(name: str) -> None:
    block, x = BLOCKS[name](), sequence(dtype=np.float32)
    y, end = block.forward(x)
    first, cache = block(x[:, :4])
    parts = [first]
    for t in (4, 5):
        out, cache = block.step(x[:, t], cache)
        parts.append(out[:, None])
    assert_near(np.concatenate(parts, axis=1), y, NEAR, "pieces")
    for key in end:
        assert_near(cache[key], end[key], NEAR, key)


@pytest.mark.parametrize("name", BLOCKS)
def test_gradients_are_finite_differences(name: str) -> None:
    block, x = BLOCKS[name](dtype="f64"), sequence()
    rng = np.random.default_rng(6)
    _, cache = block(sequence()[:, :3])
    w = rng.standard_normal(x.shape)
    (y, end), backward = block.vjp(x, cache)
    w_end = {key: rng.standard_normal(value.shape) for key, value in end.items() if key == "ssm"}
    grads = backward(w, w_end)

    def value(x: np.ndarray, cache: dict[str, np.ndarray]) -> float:
        out, last = block(x, cache)
        return float((w * out).sum() + sum((g * last[key]).sum() for key, g in w_end.items()))

    def check(what: str, got: np.ndarray, direction: np.ndarray, above: float, below: float) -> None:
        want = (above - below) / 2e-6
        have = float((got * direction).sum())
        # f64: rounding 1e-16 * 1e3 / 1e-6 = 1e-7, truncation 1e-12 times third derivatives.
        assert abs(have - want) <= 1e-6 * max(1.0, abs(want)), f"{name}, {what}: {have} and {want}"

    direction = rng.standard_normal(x.shape)
    check("x", grads.x, direction, value(x + 1e-6 * direction, cache), value(x - 1e-6 * direction, cache))
    for key, at in cache.items():
        if key == "rotation" and name == "quaternion":
            continue  # quaternions are unit vectors; a difference leaves the sphere
        direction = rng.standard_normal(at.shape)
        above, below = (value(x, {**cache, key: at + s * 1e-6 * direction}) for s in (1, -1))
        check(key, grads.cache[key], direction, above, below)
    for key, p in block.params.items():
        old, direction = p.read(), rng.standard_normal(p.shape)
        p.write(old + 1e-6 * direction)
        above = value(x, cache)
        p.write(old - 1e-6 * direction)
        below = value(x, cache)
        p.write(old)
        check(key, grads.params[key], direction, above, below)


def test_packed_rows_and_masks() -> None:
    block, x = BLOCKS["mamba2"](), sequence(1, 6, np.float32)
    y, cache = block(x, cu_seqlens=[0, 2, 6])
    assert cache["ssm"].shape[0] == 2
    assert_near(y[:, 2:], block(x[:, 2:])[0], NEAR, "second sequence")
    reset = np.zeros((1, 6), int)
    reset[0, 2] = 1
    assert_near(block(x, reset=reset)[0], y, NEAR, "reset")
    mask = np.ones((1, 6), int)
    mask[0, :2] = 0
    assert_near(block(x, mask=mask)[0][:, 2:], block(x[:, 2:])[0], NEAR, "mask")


def test_steady_state() -> None:
    block = BLOCKS["mamba1"](dt_min=0.05, dt_max=0.1)
    x = sequence(2, 1, np.float32)[:, 0]
    y, cache = block(np.repeat(x[:, None], 3000, axis=1))
    # The slowest state decays by exp(-dt) a token: 3000 tokens of dt >= 0.05 leave exp(-150).
    assert_near(block.step_infinite(x), y[:, -1], 1e-4, "steady state")


def test_bad_caches() -> None:
    block = BLOCKS["mamba2"]()
    with pytest.raises(krait.ArgumentError, match="the cache must have conv, ssm"):
        block(sequence(dtype=np.float32), {"ssm": np.zeros(1)})
    with pytest.raises(krait.ShapeError):
        block(sequence(dtype=np.float32), {"ssm": np.zeros((1, 1)), "conv": np.zeros((1, 1))})
    with pytest.raises(krait.ShapeError):
        block(np.zeros((2, 3, 5), np.float32))
    with pytest.raises(TypeError, match="unknown field 'wide'"):
        nn.Mamba2(16, wide=True)


@pytest.mark.parametrize("family", ["mamba1", "mamba2", "mamba3"])
def test_stacks(family: str) -> None:
    fields = {} if family == "mamba1" else dict(per_head_dim=8)
    stack = nn.Layers(family, 16, 2, state_rank=8, d_intermediate=24, mlp_multiple_of=8, **fields)
    x = sequence(dtype=np.float32)
    y, end = stack(x)
    assert end.batch == 2 and stack.state(3).is_initial
    first, state = stack(x[:, :4])
    second, state = stack(x[:, 4:5], state)
    last, state = stack.step(x[:, 5], state)
    assert_near(np.concatenate([first, second, last[:, None]], axis=1), y, NEAR, "pieces")
    assert state.select([1]).batch == 1 and state.join([state, end]).batch == 4
    with pytest.raises(krait.UnsupportedError, match="stack"):
        state.save("/nowhere")


def test_gradients_of_a_stack() -> None:
    stack, x = nn.Layers("mamba2", 16, 2, state_rank=8, per_head_dim=8, dtype="f64"), sequence()
    rng = np.random.default_rng(6)
    w = rng.standard_normal(x.shape)
    (y, _), backward = stack.vjp(x)
    grads = backward(w)
    direction = rng.standard_normal(x.shape)
    above, below = (float((w * stack(x + s * 1e-6 * direction)[0]).sum()) for s in (1, -1))
    want, got = (above - below) / 2e-6, float((grads.x * direction).sum())
    assert abs(got - want) <= 1e-6 * max(1.0, abs(want)), f"{got} and {want}"
    assert set(grads.params) == set(stack.params) and all(np.abs(g).max() > 0 for g in grads.params.values())


def test_seeds_and_contexts() -> None:
    own = krait.Context(threads=1)
    a, b = BLOCKS["mamba2"](seed=3, context=own), BLOCKS["mamba2"](seed=3)
    assert a.context is own and all(np.array_equal(a.params[n].read(), b.params[n].read()) for n in a.params)
    assert "parameters, cpu" in repr(a)
