"""The official functions over Krait's ops against the vectors of the official references: values and gradients, f64 and
f32."""

from __future__ import annotations

import json
import os
import pathlib

import pytest

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors")


from compat_cases import assert_close  # noqa: E402
from torch_cases import each_device  # noqa: E402
from krait._compat import layer_norms, references, selective_scan, ssd_combined, state_update  # noqa: E402

ROOT = pathlib.Path(os.environ.get("KR_SOURCE") or pathlib.Path(__file__).resolve().parents[3])
GOLDEN = ROOT / "tests" / "golden" / "ops.safetensors"
SEED = 0  # the vectors are fixed
# The vectors hold results in f64 of inputs that are exact in f32. The second figure is ten times what the reference loses in
# f32 itself (max_rel_f32_vs_f64 of the file is at most 7e-7).
TOLERANCE = {torch.float64: 1e-12, torch.float32: 7e-6}


def _load():
    with safetensors.safe_open(GOLDEN, "pt") as file:
        cases = json.loads(file.metadata()["cases"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}
    return cases, tensors


CASES, TENSORS = _load()


def _part(case, part):
    prefix = f"{case}/{part}/"
    return {name[len(prefix):]: m for name, m in TENSORS.items() if name.startswith(prefix)}


def _ssd_minimal(settings, X, A, B, C, initial_states=None):
    """A is the logarithm of the decay and X has dt in it: dt = A as a step with the rate 1, X / dt as input."""
    y, final = ssd_combined.K.ssd(X, A, torch.ones_like(A), B, C, None, initial_states)
    return {"Y": y, "final_state": final}


def _ssd_minimal_ref(settings, X, A, B, C, initial_states=None):
    y, final = references.ssd_minimal_discrete(X, A, B, C, settings["block_len"], initial_states)
    return {"Y": y, "final_state": final}


def _ssd_combined(settings, **operands):
    """The recorded final state ignores z and D, as it does here."""
    y, final = ssd_combined.mamba_chunk_scan_combined(**operands, chunk_size=settings["chunk_size"],
                                                      dt_softplus=settings["dt_softplus"], return_final_states=True)
    return {"y": y, "final_state": final}


def _ssd_combined_ref(settings, **operands):
    return {"y": references.ssd_chunk_scan_combined_ref(**operands, chunk_size=8, dt_softplus=settings["dt_softplus"])}


def _selective_scan(settings, **operands):
    y, last = selective_scan.selective_scan_fn(**operands, delta_softplus=settings["delta_softplus"], return_last_state=True)
    return {"y": y, "last_state": last}


def _selective_scan_ref(settings, **operands):
    y, last = references.selective_scan_ref(**operands, delta_softplus=settings["delta_softplus"], return_last_state=True)
    return {"y": y, "last_state": last}


def _gated_norm(settings, x, weight, z):
    return {"y": layer_norms.gated_rmsnorm_fn(x, weight, None, z, settings["eps"], settings["group_size"],
                                              settings["norm_before_gate"])}


def _gated_norm_ref(settings, x, weight, z):
    return {"y": references.rms_norm_gated_ref(x, weight, None, z, settings["eps"], settings["group_size"],
                                               settings["norm_before_gate"])}


FUNCTIONS = {
    "ssd_minimal": (_ssd_minimal, _ssd_minimal_ref), "ssd_combined": (_ssd_combined, _ssd_combined_ref),
    "selective_scan": (_selective_scan, _selective_scan_ref), "rmsnorm_gated": (_gated_norm, _gated_norm_ref),
}


def _kind(case):
    return case.rpartition("_")[0]


def _check(case, function, dtype, device):
    settings = CASES[case]
    leaves = {name: m.detach().clone().to(device, dtype).requires_grad_() for name, m in _part(case, "in").items()}
    found = function(settings, **leaves)
    wanted, weights = _part(case, "out"), _part(case, "w")
    for name, value in found.items():
        assert_close(value, wanted[name], f"{case} {name}", SEED, TOLERANCE[dtype])
    if set(found) != set(wanted):
        return  # gradients are of the sum over all outputs
    loss = sum((value * weights[name].to(device, dtype)).sum() for name, value in found.items())
    loss.backward()
    for name, gradient in _part(case, "grad").items():
        assert_close(leaves[name].grad, gradient, f"{case} gradient of {name}", SEED, TOLERANCE[dtype])


@each_device
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("case", [c for c in sorted(CASES) if _kind(c) in FUNCTIONS])
def test_function(case, dtype, device):
    _check(case, FUNCTIONS[_kind(case)][0], dtype, device)


@pytest.mark.parametrize("case", [c for c in sorted(CASES) if _kind(c) in FUNCTIONS])
def test_reference(case):
    """The plain formulations agree as well: they are what the other tests compare with."""
    _check(case, FUNCTIONS[_kind(case)][1], torch.float64, "cpu")


@each_device
@pytest.mark.parametrize("function", [state_update.selective_state_update, references.selective_state_update_ref])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("case", [c for c in sorted(CASES) if _kind(c) == "state_update"])
def test_state_update(case, dtype, function, device):
    """One number a head is expanded over its channels, as the callers of the official function do. It has no gradients."""
    o = {name: m.to(device, dtype) for name, m in _part(case, "in").items()}
    shape = o["state"].shape
    state = o["state"].clone()
    y = function(
        state,
        o["x"],
        o["dt"][..., None].expand(shape[:3]),
        o["A"][:, None, None].expand(shape[1:]),
        o["B"],
        o["C"],
        D=o["D"][:, None].expand(shape[1:3]),
        z=o.get("z"),
        dt_bias=o["dt_bias"][:, None].expand(shape[1:3]),
        dt_softplus=CASES[case]["dt_softplus"],
    )
    wanted = _part(case, "out")
    assert_close(y, wanted["y"], f"{case} y", SEED, TOLERANCE[dtype])
    assert_close(state, wanted["new_state"], f"{case} new_state", SEED, TOLERANCE[dtype])


def test_every_case_of_these_kinds_is_there():
    counted = {kind: sum(_kind(c) == kind for c in CASES) for kind in (*FUNCTIONS, "state_update")}
    assert counted == {"ssd_minimal": 2, "ssd_combined": 3, "selective_scan": 2, "rmsnorm_gated": 2, "state_update": 2}
