"""torch.ops.krait against recorded results and gradients of the official reference functions, in f64 and f32."""

from __future__ import annotations

from typing import Any, Callable

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from krait.torch import functional as KF  # noqa: E402
from torch_cases import K, assert_close, each_device, golden_ops  # noqa: E402

CASES, TENSORS = golden_ops()
# Rotations and chunks of an op in another order than the reference; both are f64.
F64 = 1e-12
Inputs = dict[str, Any]
Results = dict[str, Any]


def ssd_minimal(x: Inputs, about: Inputs) -> Results:
    ones = torch.ones_like(x["A"])
    y, final = K.ssd(x["X"], x["A"], ones, x["B"], x["C"], None, x.get("initial_states"), None, about["block_len"])
    return {"Y": y, "final_state": final}


def ssd_combined(x: Inputs, about: Inputs) -> Results:
    dt = x["dt"] if "dt_bias" not in x else x["dt"] + x["dt_bias"]
    dt = F.softplus(dt) if about["dt_softplus"] else dt
    by_head = x.get("D") if x.get("D") is not None and x["D"].dim() == 1 else None
    y, final = KF.ssd(x["x"], dt, x["A"], x["B"], x["C"], by_head, chunk_len=about["chunk_size"])
    if "D" in x and by_head is None:
        y = y + x["D"] * x["x"]
    return {"y": KF.gate(y, x["z"]) if "z" in x else y, "final_state": final}


def selective_scan(x: Inputs, about: Inputs) -> Results:
    def tokens(t: Any) -> Any:
        return t.transpose(1, 2)

    def grouped(t: Any) -> Any:
        return tokens(t).unsqueeze(2) if t.dim() == 3 else t.permute(0, 3, 1, 2)

    dt = F.softplus(tokens(x["delta"]) + x["delta_bias"])
    y, last = KF.selective_scan(tokens(x["u"]), dt, x["A"], grouped(x["B"]), grouped(x["C"]), x["D"], tokens(x["z"]))
    return {"y": tokens(y), "last_state": last}


def state_update(x: Inputs, about: Inputs) -> Results:
    """One token through the op for sequences, which has gradients."""
    dt = F.softplus(x["dt"] + x["dt_bias"]).unsqueeze(1)
    y, state = K.ssd(x["x"].unsqueeze(1), dt * x["A"], dt, x["B"].unsqueeze(1), x["C"].unsqueeze(1), x["D"], x["state"], None,
                     0)
    y = y.squeeze(1)
    return {"y": KF.gate(y, x["z"]) if "z" in x else y, "new_state": state}


def rmsnorm_gated(x: Inputs, about: Inputs) -> Results:
    groups = 1 if about["group_size"] is None else x["x"].shape[-1] // about["group_size"]
    return {"y": KF.gated_norm(x["x"], x["z"], x["weight"], eps=about["eps"], groups=groups,
                               norm_before_gate=about["norm_before_gate"])}


def trapezoid_of(x: Inputs) -> tuple[Any, ...]:
    """dt, da, gamma and carry [b s h] of operands [b h s]."""
    dt, da, trap = (x[name].transpose(1, 2) for name in ("DT", "ADT", "Trap"))
    weight = torch.sigmoid(trap)
    return dt, da, dt * weight, dt * (1 - weight)


def angles_of(x: Inputs, dt: Any) -> tuple[Any, Any]:
    """The op's angles are shared by heads; these differ by head, so each head is a call."""
    initial = x.get("Angle_State")
    parts = [KF.rotation_angles(x["Angles"][:, :, h], dt[:, :, h: h + 1],
                                initial=None if initial is None else initial[:, h: h + 1]) for h in range(dt.shape[2])]
    return torch.cat([p[0] for p in parts], 2), torch.cat([p[1] for p in parts], 1)


def siso(x: Inputs, about: Inputs) -> Results:
    dt, da, gamma, carry = trapezoid_of(x)
    angle, final_angle = angles_of(x, dt)
    k = KF.rotate(x["K"].unsqueeze(2), angle, x["K_bias"].unsqueeze(1))
    q = KF.rotate(x["Q"].unsqueeze(2), angle, x["Q_bias"].unsqueeze(1))
    before = None
    if "V_State" in x:
        before = (carry[:, 0], x["V_State"].unsqueeze(1), x["K_State"].unsqueeze(1))
    v = x["V"].unsqueeze(2)
    y, final = KF.mamba3_ssd(v, k, q, da, KF.trapezoid_scale(gamma, carry), gamma, x.get("D"), initial=x.get("SSM_State"),
                             before=before)
    y = y.squeeze(2)
    return {"y": KF.gate(y, x["Z"]) if "Z" in x else y, "final_angle": final_angle, "final_ssm": final,
            "final_k": k[:, -1, 0], "final_v": x["V"][:, -1]}


def mimo(x: Inputs, about: Inputs) -> Results:
    split = not about.get("rotate_pairwise", "rotary_dim_divisor" not in about)
    dt, da, gamma, carry = trapezoid_of(x)
    angle, final_angle = angles_of(x, dt)
    k = KF.rotate(x["K"], angle, x["K_bias"], split_pairs=split)
    q = KF.rotate(x["Q"], angle, x["Q_bias"], split_pairs=split)
    v = x["V"].unsqueeze(2) * x["MIMO_V"].transpose(0, 1)
    y, final = KF.mamba3_ssd(v, k, q, da, KF.trapezoid_scale(gamma, carry), gamma, x["D"])
    y = KF.gate(y, x["Z"].unsqueeze(2) * x["MIMO_Z"].transpose(0, 1))
    y = (y * x["MIMO_O"].transpose(0, 1)).sum(2)
    if split:
        return {"y": y, "final_ssm_kp": final.transpose(2, 3), "final_k": k[:, -1]}
    return {"y": y, "final_angle": final_angle, "final_ssm": final, "final_k": k[:, -1].transpose(1, 2),
            "final_v": v[:, -1].transpose(1, 2)}


KINDS: dict[str, Callable[[Inputs, Inputs], Results]] = {
    "ssd_minimal": ssd_minimal, "ssd_combined": ssd_combined, "selective_scan": selective_scan, "state_update": state_update,
    "rmsnorm_gated": rmsnorm_gated, "mamba3_siso_fwd": siso, "mamba3_siso_step": siso, "mamba3_mimo_chunk": mimo,
    "mamba3_mimo_step": mimo,
}


def parts(case: str, which: str) -> dict[str, Any]:
    start = f"{case}/{which}/"
    return {name[len(start):]: x for name, x in TENSORS.items() if name.startswith(start)}


def wrapped(x: Any) -> Any:
    """Angles in [-pi, pi]."""
    return torch.remainder(x + torch.pi, 2 * torch.pi) - torch.pi


@each_device
@pytest.mark.parametrize("case", sorted(CASES))
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["f64", "f32"])
def test_op_agrees_with_the_reference(case: str, dtype: Any, device: str) -> None:
    about = CASES[case]
    inputs = {name: x.to(device, dtype).requires_grad_() for name, x in parts(case, "in").items()}
    results = KINDS[case.rsplit("_", 1)[0]](inputs, about)
    # f32: twenty times what the reference itself loses in f32, since chunks and sums are in another order
    tolerance = F64 if dtype is torch.float64 else max(20 * about["max_rel_f32_vs_f64"], 5e-6)
    weights, loss = parts(case, "w"), 0.0
    for name, wanted in parts(case, "out").items():
        got = results[name]
        if name == "final_angle":
            assert_close(wrapped(got.cpu() - wanted), torch.zeros_like(wanted) + 1e-30, tolerance * 1e30, f"{case} {name}")
        else:
            assert_close(got, wanted, tolerance, f"{case} {name}")
        loss = loss + (got * weights[name].to(device, dtype)).sum()
    loss.backward()
    for name, wanted in parts(case, "grad").items():
        assert_close(inputs[name].grad, wanted.view(inputs[name].shape), tolerance, f"{case}, gradient of {name}")
