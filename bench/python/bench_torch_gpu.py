#!/usr/bin/env python3
"""krait.torch on a GPU: ops and blocks against krait-bench, and training steps against the official package.

    python bench/python/bench_torch_gpu.py [--krait-bench build/cuda/krait-bench] [--rounds 3] [--case NAME] [--official]

Shapes are those of krait-bench: b 8, s 2048, d 768, 24 heads of 64, 128 states, bf16. Each figure is the median of the
rounds; a round is some calls with one wait at its end, eager (torch queues kernels while others run) and as a CUDA graph.
"queue" is the time in which the host queues a call. A training step is that of the official 130m configuration under
autocast: cross-entropy, gradients, AdamW (fused) of torch; with --official also of mamba_ssm, where it can be imported.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import tempfile
import time
from dataclasses import dataclass
from typing import Any, Callable

import krait.torch as kt
import torch
import torch.nn.functional as F

B, S, D, H, P, R, V, VOCAB = 8, 2048, 768, 24, 64, 128, 1792, 50288
BF16 = torch.bfloat16
K = torch.ops.krait


@dataclass
class Times:
    """Medians in ms; NaN: not measured."""

    eager: float
    queue: float
    graph: float


def timed(run: Callable[[], Any], count: int) -> tuple[float, float]:
    """Milliseconds of a call on the GPU, and of the host to queue it."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    begin.record()
    start = time.perf_counter()
    for _ in range(count):
        run()
    queued = time.perf_counter() - start
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / count, queued * 1e3 / count


def as_graph(run: Callable[[], Any]) -> torch.cuda.CUDAGraph:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph


def measure(run: Callable[[], Any], count: int, rounds: int) -> Times:
    for _ in range(3):
        run()
    eager = [timed(run, count) for _ in range(rounds)]
    graph = as_graph(run)
    replayed = [timed(graph.replay, count)[0] for _ in range(rounds)]
    return Times(statistics.median(t for t, _ in eager), statistics.median(q for _, q in eager), statistics.median(replayed))


def reference(program: str | None, cases: list[str]) -> dict[str, float]:
    """Milliseconds of cases of krait-bench, in bf16."""
    if program is None:
        return {}
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        command = [program, "--device", "cuda", "--json", file.name, *[f"cuda/{case}" for case in cases]]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        stored = json.load(open(file.name, encoding="utf-8"))
    rows = stored if isinstance(stored, list) else next(x for x in stored.values() if isinstance(x, list))
    return {row["case"][5:]: row["call_ns"] / 1e6 for row in rows if row["who"] in ("krait/bf16", "krait")}


def line(name: str, times: Times, own: float | None) -> None:
    ratio = f"{own:8.3f} ms   x {times.eager / own:5.2f} eager  {times.graph / own:5.2f} graph" if own else ""
    print(f"{name:34} eager {times.eager:8.3f} ms  queue {times.queue:7.3f} ms  graph {times.graph:8.3f} ms   "
          f"{'krait-bench ' + ratio if own else ''}", flush=True)


# ---- ops ----


def random(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.rand(*shape, device="cuda").mul_(2).sub_(1).to(dtype)


def with_backward(run: Callable[..., Any], operands: list[torch.Tensor]) -> Callable[[], Any]:
    """Forward and backward from a gradient of the first result; gradients are dropped."""
    leaves = [x.clone().requires_grad_() for x in operands]
    g = torch.rand_like(run(*leaves)[0])

    def once() -> None:
        torch.autograd.grad(run(*leaves)[0], leaves, g)

    return once


def without_gradient(run: Callable[..., Any], operands: list[Any]) -> Callable[[], Any]:
    def once() -> None:
        with torch.no_grad():
            run(*operands)

    return once


def ops() -> dict[str, tuple[Callable[[], Any], str]]:
    """Calls by name, each with its case of krait-bench."""
    f32 = torch.float32
    core = [random(B, S, H, P), -torch.rand(B, S, H, device="cuda") * 0.2, torch.rand(B, S, H, device="cuda") * 0.2,
            random(B, S, 1, R), random(B, S, 1, R), random(H, dtype=f32)]
    strict = [random(B, S, 1, H, P), random(B, S, 1, H, R), random(B, S, 1, H, R), *core[1:3], core[2].clone(), core[5]]

    def ssd(*x: Any) -> Any:
        return K.ssd(*x, None, None, 0)

    def ssd3(*x: Any) -> Any:
        return K.ssd3_single(*x, None, None, None, None, None, None, 0)

    def conv(*x: Any) -> Any:
        return K.causal_conv(*x, None, None, True)

    def norm(*x: Any) -> Any:
        return K.gated_norm(*x, None, 1, 1e-5, False)

    def scan(*x: Any) -> Any:
        return K.selective_scan(*x, None, None)

    of_conv = [random(B, S, V, dtype=f32), random(V, 4, dtype=f32), random(V, dtype=f32)]
    of_norm = [random(B * S, 2 * D, dtype=f32), random(B * S, 2 * D, dtype=f32), random(2 * D, dtype=f32)]
    of_scan = [random(B, S, 2 * D, dtype=f32), torch.rand(B, S, 2 * D, device="cuda") * 0.1,
               -torch.rand(2 * D, 16, device="cuda"), random(B, S, 1, 16, dtype=f32), random(B, S, 1, 16, dtype=f32), random(2 * D, dtype=f32),
               random(B, S, 2 * D, dtype=f32)]
    return {"ssd": (without_gradient(ssd, core), "ssd/mamba2-b8-s2048-h24"),
            "ssd, forward and backward": (with_backward(ssd, core), "ssd-train/mamba2-b8-s2048-h24"),
            "ssd3_single": (without_gradient(ssd3, strict), "ssd/mamba3-b8-s2048-h24"),
            "ssd3_single, forward and backward": (with_backward(ssd3, strict), "ssd-train/mamba3-b8-s2048-h24"),
            "causal_conv, f32": (without_gradient(conv, of_conv), "conv"),
            "gated_norm, f32": (without_gradient(norm, of_norm), "norm"),
            "selective_scan, f32": (without_gradient(scan, of_scan), "scan")}


def case_floor(rounds: int) -> None:
    """What torch itself takes to queue a product of one element and its gradient, and a call of a Krait op on one token."""
    x, g = torch.ones(1, device="cuda", requires_grad=True), torch.ones(1, device="cuda")
    token = [random(1, 1, 1, 4, dtype=torch.float32), *[torch.zeros(1, 1, 1, device="cuda")] * 2,
             *[random(1, 1, 1, 4, dtype=torch.float32)] * 2]

    def product() -> None:
        torch.autograd.grad(x * 2, x, g)

    def ssd(*given: Any) -> Any:
        return K.ssd(*given, None, None, None, 0)

    for name, run in (("torch: x * 2 and its gradient", product), ("ssd, one token", without_gradient(ssd, token)),
                      ("ssd, one token, with its gradient", with_backward(ssd, token))):
        for _ in range(20):
            run()
        print(f"{name:34} queue {statistics.median(timed(run, 200)[1] for _ in range(rounds)) * 1e3:7.1f} us", flush=True)


def case_ops(program: str | None, rounds: int) -> None:
    case_floor(rounds)
    all_ops = ops()
    own = reference(program, [case for _, case in all_ops.values()])
    for name, (run, case) in all_ops.items():
        line(name, measure(run, 30, rounds), own.get(case))


# ---- blocks ----


def block_runs(block: torch.nn.Module) -> tuple[Callable[[], Any], Callable[[], Any]]:
    u, g = torch.randn(B, S, D, device="cuda", dtype=BF16), torch.randn(B, S, D, device="cuda", dtype=BF16)
    own = u.clone().requires_grad_()
    parameters = list(block.parameters())

    def forward() -> None:
        with torch.no_grad(), torch.autocast("cuda", BF16):
            block(u)

    def train() -> None:
        with torch.autocast("cuda", BF16, cache_enabled=False):
            y = block(own)
        torch.autograd.grad(y, [own, *parameters], g)

    return forward, train


def case_blocks(program: str | None, rounds: int) -> None:
    own = reference(program, [f"{kind}/{name}-d768" for kind in ("block", "block-train") for name in ("mamba2", "mamba3")])
    for name, kind in (("mamba2", kt.Mamba2), ("mamba3", kt.Mamba3), ("mamba1", kt.Mamba)):
        forward, train = block_runs(kind(D).cuda())
        line(f"{name} d 768", measure(forward, 20, rounds), own.get(f"block/{name}-d768"))
        line(f"{name} d 768, forward and backward", measure(train, 10, rounds), own.get(f"block-train/{name}-d768"))


# ---- training ----


def step_of(model: torch.nn.Module) -> Callable[[], Any]:
    """A training step on one batch."""
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, weight_decay=0.1, fused=True, capturable=True)
    ids = torch.randint(0, VOCAB, (B, S + 1), device="cuda")
    tokens, labels = ids[:, :-1].contiguous(), ids[:, 1:].flatten()

    def step() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", BF16, cache_enabled=False):
            loss = F.cross_entropy(model(tokens).logits.flatten(0, 1), labels)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def models(layer: str, official: bool) -> dict[str, Callable[[], torch.nn.Module]]:
    settings: dict[str, Any] = dict(d_model=D, n_layer=24, vocab_size=VOCAB, ssm_cfg={"layer": layer})
    made: dict[str, Callable[[], torch.nn.Module]] = {
        "krait": lambda: kt.MambaLMHeadModel(kt.MambaConfig(**settings), device="cuda")}
    if not official:
        return made
    try:
        from mamba_ssm.models.config_mamba import MambaConfig
        from mamba_ssm.models.mixer_seq_simple import MambaLMHeadModel
    except ImportError as error:
        print(f"mamba_ssm cannot be imported: {error}")
        return made

    def swapped() -> torch.nn.Module:
        """The official model whose blocks are ours."""
        model = MambaLMHeadModel(MambaConfig(**settings), device="cuda")
        for i, one in enumerate(model.backbone.layers):
            mixer = {"Mamba1": kt.Mamba, "Mamba2": kt.Mamba2}[layer](D, layer_idx=i, device="cuda")
            mixer.load_state_dict(one.mixer.state_dict())
            one.mixer = mixer
        return model

    return made | {"official model, krait's mixers": swapped,
                   "official": lambda: MambaLMHeadModel(MambaConfig(**settings), device="cuda")}


def case_training(program: str | None, rounds: int, official: bool) -> None:
    own = reference(program, ["train/130m/mamba2"]) if program else {}
    if own:
        print(f"{'130m/mamba2, libkrait':34} {B * S / own['train/130m/mamba2'] * 1e3:9.0f} tokens/s")
    for layer in ("Mamba2", "Mamba1") if official else ("Mamba2", "Mamba1", "Mamba3"):
        for name, make in models(layer, official and layer == "Mamba2").items():
            torch.manual_seed(0)
            step = step_of(make())
            torch.cuda.reset_peak_memory_stats()
            losses = [float(step()) for _ in range(4)]
            times = measure(step, 5, rounds)
            print(f"{f'130m/{layer.lower()}, {name}':34} {B * S / times.eager * 1e3:9.0f} tokens/s eager  "
                  f"{B * S / times.graph * 1e3:9.0f} as a graph   (queue {times.queue:.1f} ms, eager {times.eager:.1f}, graph "
                  f"{times.graph:.1f}; {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB; losses "
                  f"{losses[0]:.3f} to {losses[-1]:.3f})", flush=True)
            del step
            torch.cuda.empty_cache()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--krait-bench", metavar="PROGRAM")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--case", choices=["ops", "blocks", "training"], action="append")
    parser.add_argument("--official", action="store_true", help="also train the model of mamba_ssm")
    given = parser.parse_args()
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}, b {B}, s {S}; medians of {given.rounds}")
    for name in given.case or ["ops", "blocks", "training"]:
        if name == "training":
            case_training(given.krait_bench, given.rounds, given.official)
        else:
            {"ops": case_ops, "blocks": case_blocks}[name](given.krait_bench, given.rounds)


if __name__ == "__main__":
    main()
