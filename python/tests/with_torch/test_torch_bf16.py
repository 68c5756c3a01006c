"""Ops on bf16 where kernels read and write it, as on a GPU: here by the reference kernels of the CPU, which take every type.

What these tests show is which tensors of a call are bf16, f32 or converted; speed and the kernels of a GPU are tested in
test_torch_cuda.py.
"""

from __future__ import annotations

from typing import Any, Iterator

import pytest

torch = pytest.importorskip("torch")

import krait  # noqa: E402
import krait.torch as kt  # noqa: E402
from krait.torch import kernels  # noqa: E402
from torch_cases import K, OPTIONAL, assert_close, cases, differentiable  # noqa: E402

BF16 = torch.bfloat16
# Operands that kernels of a GPU read as bf16, by their place, and of those the ones whose gradients they write.
READ = {"ssd": [0, 3, 4], "ssd3_single": [0, 1, 2], "ssd3_double": [0, 1, 2], "causal_conv": [0], "gated_norm": [0, 1],
        "add_rms_norm": [0], "gate": [0, 1], "linear": [0, 1], "mamba2_mixer": [0], "mamba3_mixer": [0], "mamba1_mixer": [0]}


@pytest.fixture
def reference(monkeypatch: Any) -> Iterator[None]:
    """Calls on the CPU as they are on a GPU, by kernels that read bf16."""
    context = krait.Context(device="cpu", isa="ref", threads=1)
    monkeypatch.setattr(kernels, "_cpu_context", lambda: context)
    monkeypatch.setattr(kernels, "keeps", lambda x: x.dtype is BF16)
    yield


def rounded(op: str) -> tuple[list[Any], list[Any], list[Any]]:
    """Operands with bf16 where kernels take it, the same values in f32, and options."""
    operands, options = cases(torch.float32)[op]
    own = [x.to(BF16) if x is not None and i in READ[op] else x for i, x in enumerate(operands)]
    return own, [x if x is None else x.float() for x in own], options


def grown(operands: list[Any]) -> list[Any]:
    return [x if x is None else x.clone().requires_grad_() for x in operands]


@pytest.mark.parametrize("op", sorted(READ))
def test_bf16_is_read_and_written_in_place(op: str, reference: None) -> None:
    narrow, wide, options = rounded(op)
    leaves, exact = grown(narrow), grown(wide)
    kt.copies(reset=True)
    got = differentiable(op, getattr(K, op)(*leaves, None, *options))
    copied = kt.copies(reset=True)
    assert copied == (1 if op == "mamba1_mixer" else 0), "operands converted"  # z, which the scan reads in f32
    wanted = differentiable(op, getattr(K, op)(*exact, None, *options))
    assert got[0].dtype == BF16 and all(y.dtype == torch.float32 for y in got[1:])
    for i, (a, b) in enumerate(zip(got, wanted)):
        # one rounding of 8 bits; in a mixer also of what is between its kernels
        assert_close(a, b, 0.03 if "mixer" in op else 0.005, f"{op}, result {i}")
    gradients = [torch.randn_like(y) for y in wanted]
    kt.copies(reset=True)
    torch.autograd.backward(got, [g.to(y.dtype) for g, y in zip(gradients, got)])
    assert kt.copies() == (2 if op == "mamba1_mixer" else 0)  # z, and the gradient of y
    torch.autograd.backward(wanted, [g.to(y.dtype).float() for g, y in zip(gradients, got)])
    for i, (a, b) in enumerate(zip(leaves, exact)):
        if a is None or b.grad is None:
            continue
        assert a.grad.dtype == a.dtype
        assert_close(a.grad, b.grad, 0.06 if "mixer" in op else 0.01, f"{op}, gradient {i}")


@pytest.mark.parametrize("op", sorted(set(READ) & set(OPTIONAL)))
def test_bf16_without_optional_operands(op: str, reference: None) -> None:
    narrow, _, options = rounded(op)
    leaves = grown([None if i in OPTIONAL[op] else x for i, x in enumerate(narrow)])
    got = differentiable(op, getattr(K, op)(*leaves, None, *options))
    assert got[0].dtype == BF16
    got[0].float().sum().backward()
    assert all(torch.isfinite(x.grad).all() for x in leaves if x is not None and x.grad is not None)


@pytest.mark.parametrize("op", ["ssd", "ssd3_single"])
def test_b_and_c_of_two_types(op: str, reference: None) -> None:
    """The kernel writes their gradients in one type."""
    narrow, wide, options = rounded(op)
    at = 4 if op == "ssd" else 2
    narrow[at] = narrow[at].float()
    leaves, exact = grown(narrow), grown(wide)
    for inputs in (leaves, exact):
        getattr(K, op)(*inputs, None, *options)[0].float().square().sum().backward()
    for i, (a, b) in enumerate(zip(leaves, exact)):
        if b is not None and b.grad is not None:
            assert a.grad.dtype == a.dtype
            assert_close(a.grad, b.grad, 0.02, f"{op}, gradient {i}")


@pytest.mark.parametrize("op", sorted(READ))
def test_f16_is_computed_in_f32(op: str, reference: None) -> None:
    operands, options = cases(torch.float32)[op]
    half = [x if x is None else x.half() for x in operands]
    got = differentiable(op, getattr(K, op)(*half, None, *options))
    wanted = differentiable(op, getattr(K, op)(*[x if x is None else x.float() for x in half], None, *options))
    for i, (a, b) in enumerate(zip(got, wanted)):
        assert torch.equal(a, b.to(a.dtype)), f"{op}, result {i}"


@pytest.mark.parametrize("op", sorted(READ))
def test_shapes_and_types_without_memory(op: str, reference: None) -> None:
    """Fake tensors say the types that kernels give."""
    narrow, _, options = rounded(op)
    torch.library.opcheck(getattr(K, op).default, (*grown(narrow), None, *options),
                          test_utils=("test_schema", "test_faketensor"))


@pytest.mark.parametrize("rank", [1, 2])
@pytest.mark.parametrize("packed", [False, True])
def test_blocks_of_bf16_tokens(rank: int, packed: bool, reference: None) -> None:
    """Mamba-2 and Mamba-3 with parameters of f32, as under autocast, from states and over packed rows."""
    torch.manual_seed(2)
    blocks = [kt.Mamba2(32, d_state=16, headdim=8), kt.Mamba3(32, d_state=16, headdim=8, is_mimo=rank > 1, mimo_rank=rank,
                                                              is_outproj_norm=rank > 1)]
    limits = torch.tensor([0, 3, 9]) if packed else None
    for block in blocks:
        projected = block.in_proj(torch.randn(1, 9, 32)).detach()
        lists = kt.functional.sequences(1, 9, cu_seqlens=limits)
        name, rest = type(block).__name__, 2 if isinstance(block, kt.Mamba2) else 4
        results = []
        for slab in (projected.to(BF16), projected.to(BF16).float()):
            slab.requires_grad_()
            block.zero_grad()
            state = [None] * rest if rest == 2 else None
            y, *states = block._mix(slab, *state, lists) if rest == 2 else block._mix(slab, state, lists)
            torch.manual_seed(4)
            sum((x.float() * torch.randn(x.shape)).sum() for x in (y, *states)).backward()
            results.append([y, *states, slab.grad, *[p.grad for p in block.parameters() if p.grad is not None]])
        assert len(results[0]) == len(results[1])
        for i, (a, b) in enumerate(zip(*results)):
            assert_close(a.float(), b, 0.05, f"{name} of rank {rank}, result {i}")  # 8 bits, several times


def test_precision_of_bf16_operands() -> None:
    x = torch.zeros(1, dtype=BF16)
    assert kernels.precision_of(x) == 2 and kernels.precision_of(x.float()) == 0
    with kt.precision("exact"):
        assert kernels.precision_of(x) == 0
