"""krait.torch on a GPU: streams, CUDA graphs, memory, bf16, packed rows, DLPack, several contexts, and what is refused."""

from __future__ import annotations

from typing import Any, Callable

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402

import krait  # noqa: E402
import krait.torch as kt  # noqa: E402
from krait import _core  # noqa: E402
from krait.torch import functional as KF  # noqa: E402
from krait.torch import kernels  # noqa: E402
from test_torch_bf16 import BF16, READ  # noqa: E402
from torch_cases import (  # noqa: E402
    GOLDEN, K, PACKED, SEQUENCES, assert_close, cases, differentiable, without_gpu)

pytestmark = pytest.mark.skipif(bool(without_gpu()), reason=without_gpu() or "there is a GPU")
OPS = sorted(cases())
SLEEP = 200_000_000  # cycles of the GPU, a tenth of a second


def results_of(op: str, operands: list[Any], options: list[Any], sequences: Any = None) -> list[Any]:
    """Results and gradients under fixed weights."""
    leaves = [x if x is None else x.detach().clone().requires_grad_() for x in operands]
    results = differentiable(op, getattr(K, op)(*leaves, sequences, *options))
    torch.manual_seed(9)
    weights = [torch.randn(y.shape).to(y) for y in results]
    torch.autograd.backward(results, weights)
    return [*results, *[x.grad for x in leaves if x is not None and x.grad is not None]]


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("packed", [False, True])
def test_ops_agree_with_the_cpu(op: str, packed: bool) -> None:
    if packed and op not in PACKED:
        pytest.skip("takes no sequences")
    operands, options = cases(torch.float32)[op]
    if packed:
        operands = [torch.cat([x, x[:1] * 0.5]) if i in PACKED[op] else x for i, x in enumerate(operands)]
    sequences = SEQUENCES if packed else None
    there = [x if x is None else x.cuda() for x in operands]
    for i, (a, b) in enumerate(zip(results_of(op, there, options, sequences), results_of(op, operands, options, sequences))):
        assert a.is_cuda
        assert_close(a, b, 2e-5, f"{op}, result {i}")  # f32 sums in two orders, over tens of terms


# ---- bf16 ----


@pytest.mark.parametrize("op", sorted(READ))
def test_bf16_is_read_and_written_in_place(op: str) -> None:
    operands, options = cases(torch.float32, "cuda")[op]
    narrow = [x.to(BF16) if x is not None and i in READ[op] else x for i, x in enumerate(operands)]
    kt.copies(reset=True)
    got = results_of(op, narrow, options)
    assert kt.copies() == (3 if op == "mamba1_mixer" else 0), "operands converted"  # z twice, and the gradient of y
    wanted = results_of(op, [x if x is None else x.float() for x in narrow], options)
    assert got[0].dtype == BF16
    for i, (a, b) in enumerate(zip(got, wanted)):
        assert_close(a, b, 0.06 if "mixer" in op else 0.015, f"{op}, result {i}")  # 8 bits; in a mixer several times


WIDE: dict[str, Callable[[], Any]] = {
    "mamba": lambda: kt.Mamba(256), "mamba2": lambda: kt.Mamba2(256), "mamba3": lambda: kt.Mamba3(256),
    "mamba3_mimo": lambda: kt.Mamba3(256, is_mimo=True, is_outproj_norm=True),
}


@pytest.mark.parametrize("name", sorted(WIDE))
def test_blocks_under_autocast(name: str) -> None:
    """Sizes of the kernels for tensor cores. Parameters and their gradients stay f32, and tokens are not converted."""
    torch.manual_seed(1)
    block, u = WIDE[name]().cuda(), torch.randn(2, 300, 256, device="cuda")
    weights, results = torch.randn(2, 300, 256, device="cuda"), []
    for is_on in (True, False):
        block.zero_grad()
        own = u.clone().requires_grad_()
        kt.copies(reset=True)
        with torch.autocast("cuda", torch.bfloat16, enabled=is_on):
            y = block(own)
        (y * weights).sum().backward()
        assert y.dtype == (BF16 if is_on else torch.float32)
        assert kt.copies() == (3 if is_on and name == "mamba" else 0)
        assert all(p.grad.dtype == torch.float32 for p in block.parameters())
        results.append([y, own.grad, *[p.grad for p in block.parameters()]])
    for i, (a, b) in enumerate(zip(*results)):
        assert_close(a, b, 0.06, f"{name}, result {i}")  # 8 bits, through two products and a core


@pytest.mark.parametrize("name", sorted(WIDE))
def test_bf16_modules_train_and_step(name: str) -> None:
    torch.manual_seed(1)
    block = WIDE[name]().cuda().to(BF16)
    wide = WIDE[name]().cuda()
    wide.load_state_dict({key: x.float() for key, x in block.state_dict().items()})
    u = torch.randn(1, 12, 256, device="cuda", dtype=BF16)
    wanted = wide(u.float())
    y = block(u)
    y.float().square().sum().backward()
    assert y.dtype == BF16 and all(torch.isfinite(p.grad).all() for p in block.parameters())
    assert_close(y, wanted, 0.05, name)
    cache = block.allocate_inference_cache(1, 0)
    rows = torch.cat([block.step(u[:, t: t + 1], *cache)[0] for t in range(12)], 1)
    assert_close(rows, wanted, 0.1, f"{name}, steps")  # states of 8 bits, too


def test_f16_is_computed_in_f32() -> None:
    operands, options = cases(torch.float32, "cuda")["mamba2_mixer"]
    half = [operands[0].half(), *operands[1:]]
    got, wanted = K.mamba2_mixer(*half, None, *options), K.mamba2_mixer(half[0].float(), *operands[1:], None, *options)
    assert got[0].dtype == torch.float16 and torch.equal(got[0], wanted[0].half()) and torch.equal(got[1], wanted[1])


def test_products_of_16_bits() -> None:
    torch.manual_seed(0)
    x, w = torch.randn(300, 64, device="cuda", dtype=BF16), torch.randn(96, 64, device="cuda", dtype=BF16)
    bias = torch.randn(96, device="cuda", dtype=BF16)
    assert_close(K.linear(x, w, bias, None), F.linear(x.float(), w.float(), bias.float()), 0.008, "linear")  # 8 bits once


# ---- streams ----


def filled_late(value: Any, stream: Any) -> Any:
    """A copy of value that the stream writes after a while."""
    late = torch.zeros_like(value)
    with torch.cuda.stream(stream):
        torch.cuda._sleep(SLEEP)
        late.copy_(value)
    return late


@pytest.mark.parametrize("where", ["default", "side"])
def test_calls_run_on_the_current_stream(where: str) -> None:
    operands, options = cases(torch.float32, "cuda")["mamba2_mixer"]
    wanted = K.mamba2_mixer(*operands, None, *options)[0]
    torch.cuda.synchronize()
    stream = torch.cuda.default_stream() if where == "default" else torch.cuda.Stream()
    late = filled_late(operands[0], stream)
    with torch.cuda.stream(stream):
        y = K.mamba2_mixer(late, *operands[1:], None, *options)[0]
        marked = torch.cuda.Event()
        marked.record()
        assert not marked.query(), "the host has waited"
    stream.synchronize()
    assert torch.equal(y, wanted)


def test_two_streams_take_turns() -> None:
    """Kernels of a context share counters: its calls run one after another, whatever their streams."""
    torch.manual_seed(0)
    block, streams = kt.Mamba2(256).cuda(), [torch.cuda.Stream() for _ in range(2)]
    inputs = [torch.randn(2, 256, 256, device="cuda") for _ in range(8)]
    with torch.no_grad():
        wanted = [block(u) for u in inputs]
        torch.cuda.synchronize()
        got = []
        for i, u in enumerate(inputs):
            with torch.cuda.stream(streams[i % 2]):
                got.append(block(u))
    torch.cuda.synchronize()
    for i, (a, b) in enumerate(zip(got, wanted)):
        assert torch.equal(a, b), f"call {i}"


# ---- CUDA graphs ----


def warmed_up(run: Callable[[], Any]) -> None:
    """As torch.cuda.graph asks: a few calls on a side stream."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(stream)


@pytest.mark.parametrize("name", sorted(WIDE))
@pytest.mark.parametrize("narrow", [False, True])
def test_a_forward_in_a_graph(name: str, narrow: bool) -> None:
    torch.manual_seed(1)
    block, u = WIDE[name]().cuda(), torch.randn(2, 200, 256, device="cuda")
    inputs = [torch.randn_like(u) for _ in range(3)]

    def run() -> Any:
        with torch.no_grad(), torch.autocast("cuda", torch.bfloat16, enabled=narrow, cache_enabled=False):
            return block(u)

    wanted = []
    for x in inputs:
        u.copy_(x)
        wanted.append(run().clone())
    warmed_up(run)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = run()
    other = [run() for _ in range(2)]  # calls between do not disturb the graph's memory
    for x, w in zip(inputs, wanted):
        u.copy_(x)
        torch.randn(1 << 20, device="cuda")
        graph.replay()
        assert torch.equal(y, w)
    del other


@pytest.mark.parametrize("name", sorted(WIDE))
def test_a_training_step_in_a_graph(name: str) -> None:
    """The same weights as from eager steps, bit by bit."""
    def prepared() -> tuple[Any, Any]:
        torch.manual_seed(1)
        block = WIDE[name]().cuda()
        return block, torch.optim.SGD(block.parameters(), 1e-3)

    torch.manual_seed(2)
    inputs = [torch.randn(2, 150, 256, device="cuda") for _ in range(6)]
    u = inputs[0].clone()

    def step(block: Any, optimizer: Any) -> Any:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
            loss = (block(u).float() - u).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    eager, optimizer = prepared()
    for x in [inputs[0]] * 3 + inputs[3:]:
        u.copy_(x)
        step(eager, optimizer)
    block, optimizer = prepared()
    u.copy_(inputs[0])
    warmed_up(lambda: step(block, optimizer))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step(block, optimizer)
    for x in inputs[3:]:
        u.copy_(x)
        graph.replay()
    assert torch.isfinite(loss)
    for (key, a), b in zip(block.named_parameters(), eager.parameters()):
        assert torch.equal(a, b), key


def test_steps_in_a_graph() -> None:
    torch.manual_seed(1)
    block = kt.Mamba2(256).cuda()
    tokens = torch.randn(6, 3, 1, 256, device="cuda")
    u, cache = tokens[0].clone(), block.allocate_inference_cache(3, 0)
    warmed_up(lambda: block.step(u, *cache))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = block.step(u, *cache)[0]
    for state in cache:
        state.zero_()
    rows = []
    for token in tokens:
        u.copy_(token)
        graph.replay()
        rows.append(y.clone())
    own = block.allocate_inference_cache(3, 0)
    for t, token in enumerate(tokens):
        assert torch.equal(rows[t], block.step(token, *own)[0]), f"token {t}"


def test_packed_rows_in_a_graph() -> None:
    """The list is in pinned memory before the capture; one that is not is refused."""
    operands, options = cases(torch.float32, "cuda")["causal_conv"]
    operands[3] = None
    pinned = KF.sequences(2, 6, seq_start=torch.tensor([[1, 0, 1, 0, 0, 0], [1, 0, 0, 0, 0, 0]]), pin=True)
    wanted = K.causal_conv(*operands, pinned, *options)[0]
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = K.causal_conv(*operands, pinned, *options)[0]
        with pytest.raises(krait.StateError, match="sequences is not in pinned memory, which cannot be allocated while"):
            K.causal_conv(*operands, pinned.clone(), *options)
    graph.replay()
    assert torch.equal(y, wanted)


# ---- packed rows ----


def test_lists_stay_until_their_kernels_have_run() -> None:
    """Many lists of one size, behind work that takes a while; their memory is not used again too early."""
    torch.manual_seed(0)
    x, w = torch.randn(1, 64, 8, device="cuda"), torch.randn(8, 4, device="cuda")
    starts = [(torch.rand(1, 64) < 0.2).int() for _ in range(100)]
    wanted = [K.causal_conv(x, w, None, None, KF.sequences(1, 64, seq_start=s), True)[0] for s in starts]
    torch.cuda.synchronize()
    torch.cuda._sleep(SLEEP)
    got = [K.causal_conv(x, w, None, None, KF.sequences(1, 64, seq_start=s), True)[0] for s in starts]
    marked = torch.cuda.Event()
    marked.record()
    assert not marked.query(), "the host has waited"
    for i, (a, b) in enumerate(zip(got, wanted)):
        assert torch.equal(a, b), f"call {i}"


# ---- memory ----


def test_memory_comes_from_torch() -> None:
    """What the context keeps, and the work memory of a call."""
    own = kernels.context(torch.device("cuda", 0))
    kept = own.memory()["device"]["live_bytes"]
    block, u = kt.Mamba2(256).cuda(), torch.randn(2, 512, 256, device="cuda")
    block(u).sum().backward()
    assert own.memory()["device"]["live_bytes"] == kept, "a call took memory of the context"
    memory = kernels._DeviceMemory(0)
    before = torch.cuda.memory_allocated()
    other = _core.Context(device="cuda:0", device_memory=(memory.alloc, memory.free))
    assert torch.cuda.memory_allocated() > before
    del other
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() == before


def test_out_of_memory() -> None:
    """Of torch's allocator, and of the library; a program that catches torch's class catches both. Both go on after it."""
    operands, options = cases(torch.float32, "cuda")["ssd"]
    wanted = K.ssd(*operands, None, *options)[0]
    x, b = torch.zeros(1, 1, 1, 4, device="cuda"), torch.zeros(1, 1, 1, 4, device="cuda")
    huge = 1 << 34
    with pytest.raises(torch.cuda.OutOfMemoryError):
        K.ssd(x.expand(1, huge, 1, 4), *[torch.zeros(1, 1, 1, device="cuda").expand(1, huge, 1)] * 2,
              *[b.expand(1, huge, 1, 4)] * 2, None, None, None, 0)
    assert torch.equal(K.ssd(*operands, None, *options)[0], wanted)
    own, length = kernels.context(torch.device("cuda", 0)), 977  # whose list of rows is new
    own._fail_allocation(1)
    try:
        with pytest.raises(kt.OutOfMemoryError, match="no memory") as caught:
            K.causal_conv(torch.zeros(1, length, 4, device="cuda"), torch.zeros(4, 4, device="cuda"), None, None, None, True)
    finally:
        own._fail_allocation(0)
    assert isinstance(caught.value, torch.cuda.OutOfMemoryError) and isinstance(caught.value, krait.OutOfMemoryError)
    assert torch.equal(K.ssd(*operands, None, *options)[0], wanted)


# ---- devices and contexts ----


@pytest.mark.parametrize("op", ["ssd", "causal_conv", "mamba2_mixer"])
def test_operands_of_two_devices_are_refused(op: str) -> None:
    operands, options = cases(torch.float32, "cuda")[op]
    for i in range(len(operands)):
        mixed = list(operands)
        mixed[i] = operands[i].cpu()
        with pytest.raises((krait.DeviceError, RuntimeError), match="on the CPU|on GPU 0|same device|cuda:0"):
            getattr(K, op)(*mixed, None, *options)
    getattr(K, op)(*operands, None, *options)


def test_another_context_of_the_same_gpu() -> None:
    """Models of krait have streams and memory of their own."""
    folder = GOLDEN / "official_lm" / "mamba2"
    folder = folder if folder.exists() else sorted(p for p in (GOLDEN / "official_lm").iterdir() if "mamba2" in p.name)[0]
    own = krait.load(folder, context=krait.Context(device="cuda"))
    model = kt.from_krait(own, device="cuda")
    ids = torch.randint(0, 64, (2, 24))
    with torch.no_grad():
        for _ in range(5):
            theirs = torch.from_numpy(own.logits(ids.numpy()))
            assert_close(model(ids.cuda()).logits, theirs, 2e-5, "logits")  # f32 sums in two orders


def test_a_second_gpu() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("there is one GPU")
    operands, options = cases(torch.float32, "cuda:1")["mamba2_mixer"]
    y = K.mamba2_mixer(*operands, None, *options)[0]
    assert y.device.index == 1 and torch.cuda.current_device() == 0
    assert_close(y, K.mamba2_mixer(*cases(torch.float32)["mamba2_mixer"][0], None, *options)[0], 2e-5, "y")


# ---- DLPack ----


def parameter(own: Any) -> Any:
    return own.params["backbone.norm_f.weight"]


def gpu_model() -> Any:
    return krait.new("mamba2", d_model=64, n_layers=1, state_rank=8, per_head_dim=8, vocab_size=16, seed=1,
                     context=krait.Context(device="cuda"))


def test_torch_reads_arrays_of_a_gpu() -> None:
    own = gpu_model()
    p = parameter(own)
    shared = torch.from_dlpack(p)
    assert shared.is_cuda and torch.equal(shared.cpu(), torch.from_numpy(p.numpy()))
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(SLEEP)
        late = torch.from_dlpack(p)
        marked = torch.cuda.Event()
        marked.record()
        assert not marked.query(), "the host has waited"
        assert torch.equal(late.cpu(), shared.cpu())
    with pytest.raises(BufferError, match="stream is 0, but must be -1, 1"):
        p.__dlpack__(stream=0)


def gate_of(context: Any, x: Any, z: Any) -> Any:
    tape = _core.Tape(context)
    (y,) = _core.op(tape, "gate", (tape.view(krait.from_dlpack(x)), tape.view(krait.from_dlpack(z))))
    return y


@pytest.mark.parametrize("how", ["object", "capsule"])
def test_memory_of_torch_is_read_in_order(how: str) -> None:
    """Written late on torch's current stream, read by a context with a stream of its own, and read back by torch."""
    context, side = krait.Context(device="cuda"), torch.cuda.Stream()
    torch.manual_seed(0)
    values = torch.randn(2, 64, 64, device="cuda")
    wanted = values[0] * F.silu(values[1])
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        late = filled_late(values, side)
        given: list[Any] = [late[0], late[1]]
        if how == "capsule":
            given = [x.__dlpack__(stream=1) for x in given]
        y = torch.from_dlpack(gate_of(context, *given))
        assert_close(y, wanted, 1e-6, "gate")  # f32, two formulas of sigmoid


def test_memory_is_released_after_it_was_read() -> None:
    """Arrays over memory of torch that is freed, and used again, while the library may still read it."""
    context = krait.Context(device="cuda")
    torch.manual_seed(0)
    kept = []
    for i in range(20):
        x, z = torch.full((256, 256), float(i), device="cuda"), torch.ones(256, 256, device="cuda")
        kept.append(torch.from_dlpack(gate_of(context, x, z)).clone())
        del x, z
        torch.full((256, 256), -1.0, device="cuda")
    for i, y in enumerate(kept):
        wanted = i * torch.sigmoid(torch.tensor(1.0))
        assert_close(y, torch.full((256, 256), float(wanted)), 1e-5, f"call {i}")  # f32


def test_cupy_both_ways() -> None:
    cupy = pytest.importorskip("cupy")
    own = gpu_model()
    p = parameter(own)
    assert (cupy.asnumpy(cupy.from_dlpack(p)) == p.numpy()).all()
    context = krait.Context(device="cuda")
    with cupy.cuda.Stream(non_blocking=True):
        x = cupy.arange(4096, dtype=cupy.float32).reshape(64, 64) / 4096
        z = cupy.ones((64, 64), cupy.float32)
        y = cupy.from_dlpack(gate_of(context, x, z))
        got = cupy.asnumpy(y)
    wanted = torch.arange(4096.0).view(64, 64) / 4096 * torch.sigmoid(torch.tensor(1.0))
    assert_close(torch.from_numpy(got), wanted, 1e-6, "gate")  # f32


# ---- language models ----


@pytest.mark.parametrize("layer", ["Mamba1", "Mamba2", "Mamba3"])
def test_a_language_model_learns_under_autocast(layer: str) -> None:
    """Under autocast the losses follow those of f32; the sum of the residual stream stays f32."""
    losses = []
    for is_on in (True, False):
        torch.manual_seed(3)
        options = {} if layer == "Mamba1" else {"d_state": 32, "headdim": 32}
        config = kt.MambaConfig(d_model=128, n_layer=2, vocab_size=64, ssm_cfg={"layer": layer, **options})
        model = kt.MambaLMHeadModel(config, device="cuda")
        optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
        ids = torch.arange(128, device="cuda").remainder(17)[None].repeat(2, 1)
        own = []
        for _ in range(12):
            optimizer.zero_grad()
            with torch.autocast("cuda", torch.bfloat16, enabled=is_on):
                logits = model(ids[:, :-1]).logits
            loss = F.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten())
            loss.backward()
            optimizer.step()
            own.append(float(loss))
        losses.append(own)
    assert losses[0][-1] < 0.7 * losses[0][0], losses
    for a, b in zip(*losses):
        assert abs(a - b) < 0.1 * abs(b) + 0.05, losses  # 8 bits, twelve updates


def test_generation_on_a_gpu() -> None:
    torch.manual_seed(3)
    config = kt.MambaConfig(d_model=64, n_layer=2, vocab_size=32, ssm_cfg={"layer": "Mamba2", "d_state": 16, "headdim": 16})
    model = kt.MambaLMHeadModel(config, device="cuda")
    prompt = torch.randint(0, 32, (2, 5), device="cuda")
    out = model.generate(prompt, 20)
    with torch.no_grad():
        logits = model(out[:, :-1]).logits[:, 4:]
    assert torch.equal(logits.argmax(-1), out[:, 5:])
