"""What the torch tests share: golden vectors, operands of each op, comparison."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
import torch

import krait
from krait.torch.lm import read_safetensors

GOLDEN = Path(os.environ.get("KR_SOURCE") or Path(__file__).resolve().parents[3]) / "tests" / "golden"
Tensor = torch.Tensor
K = torch.ops.krait


def without_gpu() -> str:
    """Why tests on a GPU are skipped; "" where they run."""
    if not torch.cuda.is_available():
        return "torch has no GPU here"
    return "" if any(text.startswith("cuda:0") for text in krait.devices()) else "this build of krait has no CUDA"


on_gpu = pytest.mark.skipif(bool(without_gpu()), reason=without_gpu() or "there is a GPU")
each_device = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=on_gpu)])


def golden_ops() -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Cases of ops.safetensors by name, and its tensors."""
    path = GOLDEN / "ops.safetensors"
    with open(path, "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    return json.loads(header["__metadata__"]["cases"]), read_safetensors(path)


def assert_close(got: Tensor, wanted: Tensor, tolerance: float, what: str) -> None:
    """Within tolerance times the largest wanted value; the worst element is in the message."""
    assert got.shape == wanted.shape, f"{what}: shape {list(got.shape)}, wanted {list(wanted.shape)}"
    if wanted.numel() == 0:
        return
    got, wanted = got.detach().cpu(), wanted.detach().cpu()
    difference = (got.double() - wanted.double()).abs()
    scale = max(float(wanted.abs().max()), 1e-30)
    at = int(difference.argmax())
    worst = float(difference.flatten()[at])
    assert math.isfinite(worst) and worst <= tolerance * scale, (
        f"{what}: element {at} is {float(got.flatten()[at])!r}, wanted {float(wanted.flatten()[at])!r}; "
        f"{worst / scale:.2e} of the largest, allowed {tolerance:.2e}")


def random(*shape: int, dtype: torch.dtype = torch.float64, scale: float = 1.0) -> Tensor:
    return (torch.randn(*shape, dtype=torch.float64) * scale).to(dtype)


def steps(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Positive step sizes."""
    return (torch.rand(*shape, dtype=torch.float64) * 0.5 + 0.05).to(dtype)


B, S, H, P, G, R, M, KT, I, V = 2, 6, 4, 3, 2, 4, 2, 3, 6, 5
TOKENS = 2 * H * P + 2 * G * R + 3 * H + 2
INF = math.inf


def cases(dtype: torch.dtype = torch.float64, device: str = "cpu") -> dict[str, tuple[list[Any], list[Any]]]:
    """Operands of each op, optional ones included, and its options after sequences. The same values on each device."""
    torch.manual_seed(7)

    def r(*shape: int) -> Tensor:
        return random(*shape, dtype=dtype).to(device)

    def t(*shape: int) -> Tensor:
        return steps(*shape, dtype=dtype).to(device)

    v = H * P + 2 * G * R
    return {
        "ssd": ([r(B, S, H, P), -t(B, S, H), t(B, S, H), r(B, S, G, R), r(B, S, G, R), r(H), r(B, H, P, R)], [4]),
        "ssd3_single": ([r(B, S, M, H, P), r(B, S, M, G, R), r(B, S, M, G, R), -t(B, S, H), t(B, S, H), t(B, S, H), r(H),
                         r(B, H, P, R), None, r(B, H), r(B, M, H, P), r(B, M, H, R)], [4]),
        "ssd3_double": ([r(B, S, M, H, P), r(B, S, M, G, R), r(B, S, M, G, R), -t(B, S, H), r(H), r(B, H, P, R)], [4]),
        "selective_scan": ([r(B, S, I), t(B, S, I), -t(I, R), r(B, S, G, R), r(B, S, G, R), r(I), r(B, S, I), r(B, I, R)], []),
        "causal_conv": ([r(B, S, V), r(V, KT), r(V), r(B, V, KT)], [True]),
        "gated_norm": ([r(B, S, I), r(B, S, I), r(I)], [2, 1e-5, False]),
        "gate": ([r(B, S, I), r(B, S, I)], []),
        "add_rms_norm": ([r(B, S, I), r(B, S, I), r(I)], [1e-5]),
        "linear": ([r(B, S, I), r(V, I), r(V)], []),
        "trapezoid": ([r(B, S, H), r(H), r(B, S, H), r(B, S, H)], [1e-4, 0.0, INF, False]),
        "angles": ([r(B, S, 2), t(B, S, H), r(B, H, 2) * 0.1], [1.0, 0]),
        "rotate": ([r(B, S, M, G, R), r(H, M, R), r(B, S, H, 2)], [False]),
        "quaternion_exp": ([r(B, S, H, 1, 3), t(B, S, H)], [1.0]),
        "quaternion_scan": ([r(B, S, H, 1, 4), r(B, H, 1, 4)], [0]),
        "quaternion_rotate": ([r(B, S, M, H, R), r(B, S, H, 1, 4)], []),
        "mamba1_mixer": ([r(B, S, 2 * V), r(V, KT), r(V), r(2 + 2 * R, V), r(V, 2), r(V), r(V, R), r(V), r(B, V, R),
                          r(B, V, KT)], []),
        "mamba2_mixer": ([r(B, S, H * P + v + H), r(v, KT), r(v), r(H), r(H), r(H), r(H * P), r(B, H, P, R), r(B, v, KT)],
                         [P, G, 4, 0.0, INF, 1e-5, G, False, False]),
        "mamba3_mixer": ([r(B, S, TOKENS + 2 * (M - 1) * G * R), r(H), r(H, M, R), r(H, M, R), r(H, M, P), r(H, M, P),
                          r(H, M, P), r(H), r(R), r(R), r(H * P), r(B, H, 2) * 0.1, r(B, H, P, R), r(B, M, H, R),
                          r(B, H, P)], [P, G, 4, 1e-4, 1.0, False, True, 1e-5]),
    }


# Operands that may be absent, by their place.
OPTIONAL = {"ssd": [5, 6], "ssd3_single": [6, 7, 9, 10, 11], "ssd3_double": [4, 5], "selective_scan": [5, 6, 7],
            "causal_conv": [2, 3], "gated_norm": [1, 2], "add_rms_norm": [1, 2], "linear": [2], "trapezoid": [1], "angles": [2], "rotate": [1],
            "quaternion_scan": [1], "mamba1_mixer": [2, 7, 8, 9], "mamba2_mixer": [2, 5, 6, 7, 8],
            "mamba3_mixer": [10, 11, 12, 13, 14]}

# Ops whose sequences may be given, and the operands that then have one row for each of three sequences.
PACKED = {"ssd": [6], "ssd3_single": [7, 9, 10, 11], "ssd3_double": [5], "selective_scan": [7], "causal_conv": [3],
          "angles": [2], "quaternion_scan": [1], "mamba1_mixer": [8, 9], "mamba2_mixer": [7, 8],
          "mamba3_mixer": [11, 12, 13, 14]}
SEQUENCES = torch.tensor([[0, 0, 2], [0, 2, S], [1, 0, S]])


def differentiable(op: str, outputs: Any) -> list[Tensor]:
    """The results of an op that have a gradient."""
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    kept = {"gated_norm": 1, "add_rms_norm": 2, "mamba2_mixer": 3, "mamba3_mixer": 5}.get(op, len(outputs))
    return list(outputs[:kept])
