"""krait.ssd: values against the formulas in NumPy, gradients against finite differences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from conftest import assert_near

import krait
from krait import ssd

RNG = np.random.default_rng(11)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape)


def positive(*shape: int) -> np.ndarray:
    return RNG.uniform(0.05, 0.5, shape)


B, S, H, P, G, R, M, A, J = 2, 7, 4, 3, 2, 8, 2, 2, 2
UNIT = normal(B, S, H, J, 4)
UNIT /= np.linalg.norm(UNIT, axis=-1, keepdims=True)

# Each function with operands in f64, and options.
CASES: dict[str, tuple[Callable[..., Any], dict[str, Any], dict[str, Any]]] = {
    "ssd": (
        ssd.ssd,
        dict(x=normal(B, S, H, P), dt=positive(B, S, H), a=-positive(H), b=normal(B, S, G, R), c=normal(B, S, G, R),
             d=normal(H), initial=normal(B, H, P, R), learned_init=normal(H, P, R)),
        {},
    ),
    "ssd_serial": (
        ssd.ssd,
        dict(x=normal(B, S, H, P), dt=positive(B, S, H), a=-positive(H), b=normal(B, S, G, R), c=normal(B, S, G, R)),
        dict(algorithm="serial", chunk_len=4),
    ),
    "ssd3_double": (
        ssd.ssd3_double,
        dict(v=normal(B, S, M, H, P), da=-positive(B, S, H), b=normal(B, S, M, H, R), c=normal(B, S, M, H, R),
             d=normal(H), initial=normal(B, H, P, R)),
        {},
    ),
    "ssd3_single": (
        ssd.ssd3_single,
        dict(v=normal(B, S, M, H, P), da=-positive(B, S, H), b=normal(B, S, M, H, R), c=normal(B, S, M, H, R),
             gamma=positive(B, S, H), scale=positive(B, S, H), d=normal(H), initial=normal(B, H, P, R),
             carry0=positive(B, H), v_before=normal(B, M, H, P), k_before=normal(B, M, H, R)),
        {},
    ),
    "selective_scan": (
        ssd.selective_scan,
        dict(x=normal(B, S, 6), dt=positive(B, S, 6), a=-positive(6, R), b=normal(B, S, G, R), c=normal(B, S, G, R),
             d=normal(6), z=normal(B, S, 6), initial=normal(B, 6, R)),
        {},
    ),
    "causal_conv": (
        ssd.causal_conv,
        dict(x=normal(B, S, 5), weight=normal(5, 4), bias=normal(5), window=normal(B, 5, 4)),
        dict(silu=True),
    ),
    "rms_norm": (ssd.rms_norm, dict(x=normal(B, S, 6), gain=normal(6)), dict(groups=2, eps=1e-3)),
    "layer_norm": (ssd.layer_norm, dict(x=normal(B, S, 6), gain=normal(6), bias=normal(6)), dict(eps=1e-3)),
    "gated_norm": (ssd.gated_norm, dict(x=normal(B, S, 6), z=normal(B, S, 6), gain=normal(6)), dict(eps=1e-3)),
    "norm_then_gate": (
        ssd.gated_norm, dict(x=normal(B, S, 6), z=normal(B, S, 6)), dict(eps=1e-3, norm_before_gate=True),
    ),
    "gate": (ssd.gate, dict(x=normal(3, 4), z=normal(3, 4)), {}),
    "softplus": (ssd.softplus, dict(x=normal(3, 4), bias=normal(4)), {}),
    "linear": (ssd.linear, dict(x=normal(2, 3, 4), weight=normal(5, 4), bias=normal(5)), {}),
    "trapezoid": (
        ssd.trapezoid,
        dict(dt_raw=normal(B, S, H), a_raw=normal(B, S, H), lambda_raw=normal(B, S, H), dt_bias=normal(H)),
        dict(a_activation="softplus"),
    ),
    "trapezoid_scale": (ssd.trapezoid_scale, dict(gamma=positive(B, S, H), carry=positive(B, S, H)), {}),
    "qk_norm": (ssd.qk_norm, dict(x=normal(B, S, M, G, R), gain=normal(R), bias=normal(H, M, R)), dict(heads=H, eps=1e-3)),
    "rotation_angles": (
        ssd.rotation_angles, dict(theta=normal(B, S, A), dt=positive(B, S, H), initial=normal(B, H, A)), dict(scale=0.2),
    ),
    "rotate": (ssd.rotate, dict(x=normal(B, S, M, H, R), angle=normal(B, S, H, A)), {}),
    "rotate_split": (ssd.rotate, dict(x=normal(B, S, M, H, R), angle=normal(B, S, H, A)), dict(split_pairs=True)),
    "quaternion_increments": (
        ssd.quaternion_increments, dict(raw=normal(B, S, H, J, 3), dt=positive(B, S, H)), {},
    ),
    "quaternion_cumprod": (ssd.quaternion_cumprod, dict(q=UNIT, initial=UNIT[:, 0]), {}),
    "quaternion_rotate": (ssd.quaternion_rotate, dict(x=normal(B, S, M, H, R), cumulative=UNIT), {}),
}  # fmt: skip


def as_tuple(results: Any) -> tuple[np.ndarray, ...]:
    return results if isinstance(results, tuple) else (results,)


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_finite_differences(name: str) -> None:
    function, operands, options = CASES[name]
    results, backward = ssd.vjp(function, **operands, **options)
    outputs = as_tuple(results)
    weights = [normal(*y.shape) for y in outputs]
    grads = backward(*weights)
    assert set(grads) == set(operands)

    def value(changed: dict[str, np.ndarray]) -> float:
        return float(sum((w * y).sum() for w, y in zip(weights, as_tuple(function(**changed, **options)))))

    for operand, at in operands.items():
        direction = normal(*at.shape)
        eps = 1e-6
        above, below = (value({**operands, operand: at + s * eps * direction}) for s in (1, -1))
        want = (above - below) / (2 * eps)
        got = float((grads[operand] * direction).sum())
        # f64: rounding 1e-16 * 100 / 1e-6 = 1e-8, truncation 1e-12 times third derivatives.
        assert abs(got - want) <= 1e-6 * max(1.0, abs(want)), f"{name}, {operand}: {got} and {want}"


@pytest.mark.parametrize("name", CASES)
def test_f32_is_f64_rounded(name: str) -> None:
    function, operands, options = CASES[name]
    exact = as_tuple(function(**operands, **options))
    single = as_tuple(function(**{n: v.astype(np.float32) for n, v in operands.items()}, **options))
    for y, want in zip(single, exact):
        assert y.dtype == np.float32 and want.dtype == np.float64
        assert_near(y, want, 1e-5, name)  # sums of at most 50 terms in f32


def test_vjp_leaves_values_alone() -> None:
    for function, operands, options in CASES.values():
        plain, recorded = function(**operands, **options), ssd.vjp(function, **operands, **options)[0]
        for a, b in zip(as_tuple(plain), as_tuple(recorded)):
            assert np.array_equal(a, b) and not b.flags.writeable


def by_hand(x: np.ndarray, dt: np.ndarray, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The recurrence of Mamba-2, token by token."""
    n, s, h, p = x.shape
    state, ys = np.zeros((n, h, p, b.shape[-1])), []
    group = np.arange(h) // (h // b.shape[2])
    for t in range(s):
        decay = np.exp(dt[:, t] * a)[..., None, None]
        state = decay * state + (dt[:, t, :, None] * x[:, t])[..., None] * b[:, t, group][:, :, None]
        ys.append((state * c[:, t, group][:, :, None]).sum(-1))
    return np.stack(ys, axis=1), state


def test_ssd_is_its_recurrence() -> None:
    operands = {n: v for n, v in CASES["ssd_serial"][1].items()}
    y, final = by_hand(**operands)
    for algorithm in ("minimal", "serial", "serial_recalculated"):
        got, last = ssd.ssd(**operands, algorithm=algorithm, chunk_len=4)
        assert_near(got, y, 1e-13, algorithm)
        assert_near(last, final, 1e-13, algorithm)


def test_strided_operands_are_read_in_place() -> None:
    operands = CASES["ssd_serial"][1]
    want = ssd.ssd(**operands)[0]
    fortran = {n: np.asfortranarray(v) for n, v in operands.items()}
    assert_near(ssd.ssd(**fortran)[0], want, 1e-14, "Fortran order")
    padded = {n: np.repeat(v, 2, axis=-1)[..., ::2] for n, v in operands.items()}
    assert_near(ssd.ssd(**padded)[0], want, 1e-14, "strides of two")


def test_packed_sequences() -> None:
    operands = CASES["ssd_serial"][1]
    start = np.zeros((B, S), np.int32)
    start[0, 3] = 1
    y, final = ssd.ssd(**operands, seq_start=start)
    assert final.shape[0] == 3
    one = {n: v if n == "a" else v[:1, 3:] for n, v in operands.items()}
    assert_near(y[:1, 3:], ssd.ssd(**one)[0], 1e-13, "second sequence")
    same, _ = ssd.ssd(**operands, cu_seqlens=[0, 3, S, 2 * S])
    assert_near(same, y, 1e-15, "cu_seqlens")


def test_lists_and_mixed_types() -> None:
    assert ssd.softplus([1, 2, 3]).dtype == np.float32
    assert ssd.gate([1.0], np.ones(1)).dtype == np.float64
    assert ssd.linear(np.ones((1, 2), np.float16), np.ones((3, 2), np.float16)).dtype == np.float16


def test_outputs_without_a_gradient() -> None:
    function, operands, options = CASES["ssd"]
    (y, final), backward = ssd.vjp(function, **operands, **options)
    grads = backward(None, np.ones_like(final))
    assert (grads["d"] == 0).all() and (grads["x"] != 0).any()
    with pytest.raises(krait.StateError):
        backward(np.ones_like(y))


def test_bad_calls_of_vjp() -> None:
    x = np.ones((2, 2))
    with pytest.raises(krait.ArgumentError, match="not one of krait.ssd"):
        ssd.vjp(lambda: None)
    with pytest.raises(krait.ArgumentError, match="more than one op"):
        ssd.vjp(lambda: ssd.gate(ssd.gate(x, x), x))
    with pytest.raises(krait.ArgumentError, match="nested"):
        ssd.vjp(lambda: ssd.vjp(ssd.gate, x, x))
    y, backward = ssd.vjp(ssd.gate, x, x)
    with pytest.raises(krait.ArgumentError, match="no gradient"):
        backward(None)
    with pytest.raises(krait.ArgumentError, match="2 gradients for 1 outputs"):
        backward(x, x)
    with pytest.raises(krait.ShapeError):
        backward(np.ones(3))
    assert ssd.gate(x, x).shape == (2, 2)  # nothing is recorded afterwards
