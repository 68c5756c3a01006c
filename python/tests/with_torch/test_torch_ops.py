"""torch.ops.krait: gradients, shapes for compilers, autocast, vmap, strides, types, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

import krait  # noqa: E402
import krait.torch as kt  # noqa: E402
from torch_cases import K, OPTIONAL, PACKED, SEQUENCES, assert_close, cases, differentiable, each_device  # noqa: E402

OPS = sorted(cases())


def gradcheck(op: str, operands: list[Any], options: list[Any], sequences: Any = None) -> None:
    given = [i for i, x in enumerate(operands) if x is not None]

    def run(*values: Any) -> Any:
        full = list(operands)
        for i, x in zip(given, values):
            full[i] = x
        return tuple(differentiable(op, getattr(K, op)(*full, sequences, *options)))

    leaves = [operands[i].clone().requires_grad_() for i in given]
    # on a GPU along one random direction, since each element costs two calls of many kernels
    assert torch.autograd.gradcheck(run, leaves, fast_mode=leaves[0].is_cuda)


@each_device
@pytest.mark.parametrize("op", OPS)
def test_gradients_with_all_operands(op: str, device: str) -> None:
    gradcheck(op, *cases(device=device)[op])


@each_device
@pytest.mark.parametrize("op", sorted(OPTIONAL))
def test_gradients_without_optional_operands(op: str, device: str) -> None:
    operands, options = cases(device=device)[op]
    gradcheck(op, [None if i in OPTIONAL[op] else x for i, x in enumerate(operands)], options)


@each_device
@pytest.mark.parametrize("op", sorted(PACKED))
def test_gradients_of_packed_rows(op: str, device: str) -> None:
    operands, options = cases(device=device)[op]
    packed = [torch.cat([x, x[:1] * 0.5]) if i in PACKED[op] else x for i, x in enumerate(operands)]
    gradcheck(op, packed, options, SEQUENCES)


@each_device
@pytest.mark.parametrize("op", OPS)
def test_gradient_of_one_result_alone(op: str, device: str) -> None:
    """The others are absent in backward, as where only a final state is used."""
    operands, options = cases(device=device)[op]
    leaves = [x if x is None else x.clone().requires_grad_() for x in operands]
    results = differentiable(op, getattr(K, op)(*leaves, None, *options))
    given = [x for x in leaves if x is not None]
    weights = [torch.randn_like(y) for y in results]
    whole = torch.autograd.grad(results, given, weights, retain_graph=True, allow_unused=True)
    sums = [torch.zeros_like(x) for x in given]
    for y, w in zip(results, weights):
        for total, g in zip(sums, torch.autograd.grad(y, given, w, retain_graph=True, allow_unused=True)):
            if g is not None:
                total += g
    for i, (total, g) in enumerate(zip(sums, whole)):
        assert_close(total, g, 1e-12, f"{op}, operand {i}")  # f64 sums in another order


@each_device
@pytest.mark.parametrize("op", OPS)
def test_opcheck(op: str, device: str) -> None:
    operands, options = cases(torch.float32, device)[op]
    leaves = [x if x is None else x.requires_grad_() for x in operands]
    torch.library.opcheck(getattr(K, op).default, (*leaves, None, *options))


@each_device
@pytest.mark.parametrize("op", OPS)
def test_vmap_is_a_loop_of_calls(op: str, device: str) -> None:
    operands, options = cases(device=device)[op]
    first = torch.stack([operands[0], operands[0] * 0.5, operands[0] + 1])

    def run(x: Any) -> Any:
        return tuple(differentiable(op, getattr(K, op)(x, *operands[1:], None, *options)))

    mapped = torch.vmap(run)(first)
    single = [run(x) for x in first]
    for i, y in enumerate(mapped):
        assert_close(y, torch.stack([one[i] for one in single]), 1e-13, f"{op}, result {i}")


def test_vmap_over_a_parameter() -> None:
    operands, options = cases()["ssd"]
    skip = torch.stack([operands[5], operands[5] * 2])
    mapped = torch.vmap(lambda d: K.ssd(*operands[:5], d, operands[6], None, *options)[0])(skip)
    for y, d in zip(mapped, skip):
        assert torch.equal(y, K.ssd(*operands[:5], d, operands[6], None, *options)[0])


def wider(x: Any) -> Any:
    """The same values as a part of wider rows."""
    wider = x.new_empty(*x.shape[:-1], x.shape[-1] + 5)
    wider[..., 2:-3] = x
    return wider[..., 2:-3]


@each_device
@pytest.mark.parametrize("op", ["causal_conv", "gate", "gated_norm", "selective_scan", "mamba1_mixer", "mamba2_mixer",
                                "mamba3_mixer", "linear"])
def test_parts_of_wider_rows_are_read_in_place(op: str, device: str) -> None:
    operands, options = cases(torch.float32, device)[op]
    plain = differentiable(op, getattr(K, op)(*operands, None, *options))
    kt.copies(reset=True)
    strided = differentiable(op, getattr(K, op)(wider(operands[0]), *operands[1:], None, *options))
    assert kt.copies() == 0
    for i, (a, b) in enumerate(zip(plain, strided)):
        assert torch.equal(a, b), f"{op}, result {i}"


def test_what_cannot_be_read_in_place_is_copied_once_and_counted() -> None:
    operands, options = cases(torch.float32)["causal_conv"]
    channels_first = operands[0].transpose(1, 2).contiguous().transpose(1, 2)
    kt.copies(reset=True)
    y = K.causal_conv(channels_first, *operands[1:], None, *options)[0]
    assert kt.copies(reset=True) == 1 and kt.copies() == 0
    assert torch.equal(y, K.causal_conv(*operands, None, *options)[0])


@pytest.mark.parametrize("op", OPS)
def test_16_bit_operands_are_widened_on_the_cpu(op: str) -> None:
    operands, options = cases(torch.float32)[op]
    rounded = [x if x is None else x.bfloat16() for x in operands]
    got = differentiable(op, getattr(K, op)(*rounded, None, *options))
    wanted = differentiable(op, getattr(K, op)(*[x if x is None else x.float() for x in rounded], None, *options))
    for i, (a, b) in enumerate(zip(got, wanted)):
        assert torch.equal(a, b.to(a.dtype)), f"{op}, result {i}"


def test_types_are_checked_before_anything_is_read() -> None:
    operands, options = cases(torch.float32)["ssd"]
    for i, x in enumerate(operands):
        mixed = list(operands)
        mixed[i] = x.double()
        with pytest.raises(krait.DtypeError, match="f64 mixes with no other type"):
            K.ssd(*mixed, None, *options)
        mixed[i] = x.to(torch.int8)
        with pytest.raises(krait.DtypeError, match="is of type torch.int8|and not f"):
            K.ssd(*mixed, None, *options)


def test_raw_refuses_16_bit_memory_by_the_library_s_sentence() -> None:
    from krait import _core

    x, z, y = torch.zeros(2, 3, dtype=torch.bfloat16), torch.zeros(2, 3), torch.zeros(2, 3)
    with pytest.raises(krait.DtypeError, match=r"raw gate: x \[2, 3\] is bf16, which the kernel of cpu does not take"):
        _core.raw(krait.Context(device="cpu"), _core.raw_ops["gate"], (x, z, y))


def test_shapes_are_checked() -> None:
    operands, options = cases(torch.float32)["ssd"]
    with pytest.raises(krait.ShapeError, match=r"krait::ssd: b has shape \[2, 6, 8\], but its axes are \[b s g r\]"):
        K.ssd(*operands[:3], operands[3].flatten(2), *operands[4:], None, *options)
    with pytest.raises(krait.ShapeError, match="axis r of c"):
        K.ssd(*operands[:4], operands[4][..., :3].contiguous(), *operands[5:], None, *options)


def test_the_mixer_takes_rates_themselves() -> None:
    """The same numbers, but for the gradient, which is of A: g_A_log = g_A A."""
    operands, options = cases()["mamba2_mixer"]
    results = []
    for rates in (False, True):
        leaves = [x.clone().requires_grad_() for x in operands]
        given = list(leaves)
        if rates:
            leaves[4] = (-operands[4].exp()).requires_grad_()
            given[4] = leaves[4]
        y = K.mamba2_mixer(*given, None, *options[:-1], rates)[0]
        y.square().sum().backward()
        results.append([y, *[x.grad for x in leaves]])
    results[1][5] = results[1][5] * -operands[4].exp()
    for i, (a, b) in enumerate(zip(*results)):
        assert_close(a, b, 1e-12, f"result {i}")  # f64


def test_a_second_derivative_is_refused_by_a_sentence() -> None:
    operands, options = cases()["gate"]
    x = operands[0].requires_grad_()
    (g,) = torch.autograd.grad(K.gate(x, operands[1], None).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="krait::gate has no second derivative"):
        g.sum().backward()


def test_autocast_on_the_cpu_keeps_f32_inside() -> None:
    torch.manual_seed(0)
    block = kt.Mamba2(32, d_state=16, headdim=8)
    u = torch.randn(1, 9, 32, requires_grad=True)
    wanted = block(u)
    with torch.autocast("cpu", torch.bfloat16):
        y, (window, ssm) = block(u, return_state=True)
    assert y.dtype == torch.bfloat16 and ssm.dtype == torch.float32 and window.dtype == torch.float32
    assert_close(y, wanted, 0.03, "block under autocast")  # two products rounded to 8 bits
    y.float().sum().backward()
    assert u.grad is not None and torch.isfinite(u.grad).all()


def test_steps_refuse_gradients() -> None:
    window, x, weight = torch.zeros(1, 3, 2), torch.randn(1, 3, requires_grad=True), torch.randn(3, 2)
    with pytest.raises(RuntimeError, match="krait::conv_step has no gradient, since it overwrites its state"):
        K.conv_step(window, x, weight, None, True)


def test_steps_update_their_state_in_place() -> None:
    operands, _ = cases(torch.float32)["ssd"]
    x, da, w, b, c, d, state = operands
    y, final = K.ssd(*operands, None, 0)
    own = state.clone()
    rows = [K.ssd_step(own, x[:, t], da[:, t], w[:, t], b[:, t], c[:, t], d) for t in range(x.shape[1])]
    assert_close(torch.stack(rows, 1), y, 1e-6, "y of steps")  # f32, chunks against single tokens
    assert_close(own, final, 1e-6, "state of steps")
    half = state.bfloat16()
    K.ssd_step(half, x[:, 0], da[:, 0], w[:, 0], b[:, 0], c[:, 0], d)
    whole = state.bfloat16().float()
    K.ssd_step(whole, x[:, 0], da[:, 0], w[:, 0], b[:, 0], c[:, 0], d)
    assert torch.equal(half, whole.bfloat16())


def test_opcheck_of_steps() -> None:
    torch.manual_seed(0)
    b, h, p, r = 2, 3, 4, 5
    state, x, da = torch.randn(b, h, p, r), torch.randn(b, h, p), -torch.rand(b, h)
    bc = torch.randn(b, 1, r)
    torch.library.opcheck(K.ssd_step.default, (state, x, da, da, bc, bc, None))
    torch.library.opcheck(K.conv_step.default, (torch.randn(b, 6, 4), torch.randn(b, 6), torch.randn(6, 4), None, True))
    torch.library.opcheck(K.scan_step.default, (torch.randn(b, 6, r), torch.randn(b, 6), torch.rand(b, 6), -torch.rand(6, r),
                                                bc, bc, None, None))


def test_sequences() -> None:
    from krait.torch.functional import sequences

    assert sequences(2, 3) is None
    wanted = [[0, 0, 2], [0, 2, 4], [1, 0, 1], [1, 1, 4]]
    assert sequences(2, 4, seq_start=torch.tensor([[0, 0, 1, 0], [1, 1, 0, 0]])).tolist() == wanted
    assert sequences(2, 4, seq_idx=torch.tensor([[5, 5, 6, 6], [0, 1, 1, 1]])).tolist() == wanted
    assert sequences(1, 4, cu_seqlens=torch.tensor([0, 1, 4], dtype=torch.int32)).tolist() == [[0, 0, 1], [0, 1, 4]]
    with pytest.raises(krait.ArgumentError, match="cu_seqlens must rise from 0 to the 4 tokens"):
        sequences(1, 4, cu_seqlens=torch.tensor([0, 3]))
    with pytest.raises(krait.ShapeError, match=r"seq_idx has shape \[1, 4\], but must be \[2, 4\]"):
        sequences(2, 4, seq_idx=torch.zeros(1, 4))


def test_the_table_agrees_with_the_library() -> None:
    """Names, axes and optional operands of ops that are one raw op, against the library's signature."""
    from krait import _core
    from krait.torch import ops

    for op in ops.RawOp.all:
        terms = [term.split(":") for term in _core.raw_signature(op.forward_op).split()[1:] if term != "->"]
        axes = [*op.operands, *op.results]
        for place, (name, letters) in zip(op.forward_order, terms):
            if place < 0:
                assert letters.endswith("?"), f"{op.name}: {name} is not optional"
                continue
            own = (".." if axes[place].leads else "") + axes[place].letters
            wanted = letters.rstrip("?")
            assert own in (wanted, wanted.replace("m", ""), wanted + "i" if wanted == ".." else wanted), f"{op.name}: {name} is {wanted}, but {own} in the table"
            assert letters.endswith("?") or not axes[place].optional, f"{op.name}: {name} must be given"


def test_precision() -> None:
    from krait.torch import kernels

    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        assert kernels.precision_of(torch.zeros(1)) == 2
        with kt.precision("tf32"):
            assert kernels.precision_of(torch.zeros(1)) == 1
        assert kernels.precision_of(torch.zeros(1)) == 2
        with pytest.raises(ValueError, match="'fp8' must be exact, tf32 or bf16"):
            kt.precision("fp8")
    finally:
        torch.set_float32_matmul_precision(before)


def test_threads_follow_torch() -> None:
    from krait.torch import kernels

    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        assert kernels.context(torch.device("cpu")).threads == 1
    finally:
        torch.set_num_threads(before)
    assert kernels.context(torch.device("cpu")).threads == before


def test_composed_ops() -> None:
    from krait.torch import functional as KF

    torch.manual_seed(0)
    x, gain, bias = torch.randn(2, 3, 1, 2, 4), torch.randn(4), torch.randn(6, 1, 4)
    normed = torch.nn.functional.rms_norm(x, (4,), gain, 1e-5).repeat_interleave(3, 3) + bias.transpose(0, 1)
    assert_close(KF.qk_norm(x, gain, bias, 6), normed, 1e-6, "qk_norm")  # f32
    dt = torch.randn(2, 3, 4)
    wanted = torch.nn.functional.softplus(dt + 1).clamp(0.5, 2)
    assert torch.equal(KF.softplus_dt(dt, torch.ones(4), (0.5, 2.0)), wanted)
    for op, operands in ((K.qk_norm, (x.double(), gain.double(), bias.double(), 6, 1e-5)),
                         (K.softplus_dt, (dt.double(), None, 0.0, float("inf")))):
        leaves = [t.requires_grad_() if isinstance(t, torch.Tensor) else t for t in operands]
        assert torch.autograd.gradcheck(op, leaves)


# ---- calls without preparation ----


def gate_call() -> Any:
    from krait import _core

    return _core.OpCall(_core.raw_ops["gate"], ("..i", "..i"), ("..i",), (0, 1, 2), (True, True, True), (0,))


def test_simple_calls_and_prepared_ones_give_the_same_bits() -> None:
    """A strided operand takes the other way."""
    for op in OPS:
        operands, options = cases()[op]
        strided = [x if x is None or x.dim() < 2 else torch.stack([x, x], -1)[..., 0] for x in operands]
        for mine, theirs in zip(differentiable(op, getattr(K, op)(*operands, None, *options)),
                                differentiable(op, getattr(K, op)(*strided, None, *options))):
            assert torch.equal(mine, theirs), op


def test_simple_calls_leave_other_operands_to_preparation() -> None:
    context, call, x = krait.Context(device="cpu"), gate_call(), torch.randn(3, 4)
    (y,) = call.run(context, (x, x), -1, 0, None)
    assert torch.equal(y, K.gate(x, x, None))
    with pytest.raises(krait.ArgumentError, match="y is absent"):
        call.run(context, (x, x), 0, 0, None)
    for pair in ((x, x.double()), (x, x[:2]), (x, x[:, :3]), (x.t(), x.t()), (x, None), (None, x), (x[:0], x[:0]),
                 (x.bfloat16(), x.bfloat16()), (x.to(torch.int32), x.to(torch.int32)), (x, "x"), (x.to_sparse(), x),
                 (x, x.to("meta"))):
        assert call.run(context, pair, -1, 0, None) is None, pair
    parameter = torch.nn.Parameter(x)
    assert torch.equal(call.run(context, (parameter, x), -1, 0, None)[0], y)


def test_simple_calls_name_what_is_wrong() -> None:
    from krait import _core

    gate, context, x = _core.raw_ops["gate"], krait.Context(device="cpu"), torch.randn(3, 4)
    for arguments, text in (((-1, ("i",), ("i",), (0, 0, 1)), "op = -1 is not a raw op"),
                            ((gate, (), ("i",), (0, 0, 0)), "no inputs"),
                            ((gate, ("i",), (), (0, 0, 0)), "no inputs or no results"),
                            ((gate, ("abcdefghi",), ("i",), (0, 0, 1)), "abcdefghi: at most 8 letters"),
                            ((gate, ("\u03b1",), ("i",), (0, 0, 1)), "letters of ASCII"),
                            ((gate, ("i",), ("i",), (0, 1)), "order has to name 3 views"),
                            ((gate, ("i",), ("i",), (0, 0, 2)), "order has 2 for view 2, but there are 2"),
                            ((gate, ("i",) * 33, ("i",), (0, 0, 2)), "33 views, but at most 32"),
                            ((gate, ("i",), ("i",), (0, 0, 1), (True,), (0,)), "narrow has to be of 2 views"),
                            ((gate, ("i",), ("i",), (0, 0, 1), (True,) * 2, (1,)), "source 1 of result 0 is not")):
        with pytest.raises(ValueError, match=text):
            _core.OpCall(*arguments, *((True,) * 2, (0,))[len(arguments) - 4:])
    call = gate_call()
    with pytest.raises(TypeError, match="1 inputs, but there are 2"):
        call.run(context, (x,), -1, 0, None)
    with pytest.raises(TypeError, match="2 arguments, but it takes from 5 to 13"):
        call.run(context, (x, x))
    with pytest.raises(TypeError):
        call.run(x, (x, x), -1, 0, None)
    with pytest.raises(TypeError):
        call.run(context, (x, x), -1, 0, None, "flags")


def test_simple_calls_leak_nothing() -> None:
    import gc
    import sys

    context, call, x = krait.Context(device="cpu"), gate_call(), torch.randn(3, 4)
    before = 0
    for i in range(11):
        for _ in range(1000):
            call.run(context, (x, x), -1, 0, None)
            call.run(context, (x, x[:2]), -1, 0, None)
        gc.collect()
        if i == 0:
            before = sys.getallocatedblocks()
    assert sys.getallocatedblocks() - before < 1000
