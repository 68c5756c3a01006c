"""Blocks of krait.torch against plain torch on the CPU: python bench/python/bench_blocks.py [--rounds N] [--case NAME]

Rounds of all candidates are interleaved in one run, so that a busy machine slows all of them; best and median of the rounds
are printed, and ratios of both. The figures of another machine or run are not comparable.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from typing import Any, Callable

import krait.torch as kt
import torch

import torch_blocks

Candidates = dict[str, Callable[[], Any]]


def interleaved(candidates: Candidates, rounds: int) -> dict[str, list[float]]:
    """Seconds of each round of each candidate, after one that does not count."""
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for i in range(rounds + 1):
        for name, run in candidates.items():
            start = time.perf_counter()
            run()
            if i:
                times[name].append(time.perf_counter() - start)
    return times


def report(title: str, times: dict[str, list[float]]) -> None:
    """Best and median in ms, and how many times as long as the first candidate each of the others takes."""
    ours = next(iter(times.values()))
    print(title)
    for name, own in times.items():
        best, median = min(own), statistics.median(own)
        print(f"  {name:24} best {best * 1e3:8.1f} ms  median {median * 1e3:8.1f} ms  "
              f"x {best / min(ours):5.2f} best  {median / statistics.median(ours):5.2f} median")


def forward_only(run: Callable[[torch.Tensor], torch.Tensor], u: torch.Tensor) -> Callable[[], None]:
    def once() -> None:
        with torch.no_grad():
            run(u)

    return once


def with_backward(run: Callable[[torch.Tensor], torch.Tensor], u: torch.Tensor, module: torch.nn.Module) -> Callable[[], None]:
    g = torch.randn(u.shape)

    def once() -> None:
        module.zero_grad()
        u.grad = None
        run(u).backward(g)

    return once


def check(ours: torch.Tensor, other: torch.Tensor, name: str) -> None:
    worst = float((ours - other).abs().max() / other.abs().max())
    if worst > 1e-4:  # f32 sums of 2048 tokens in two orders
        sys.exit(f"{name}: differs from the block of krait.torch by {worst:.1e} of the largest value")


def compare(title: str, module: torch.nn.Module, u: torch.Tensor, others: dict[str, Any], rounds: int) -> None:
    runs: dict[str, Any] = {"krait": module, **others}
    with torch.no_grad():
        for name, run in others.items():
            check(module(u), run(u), name)
    report(f"{title}, forward", interleaved({n: forward_only(r, u) for n, r in runs.items()}, rounds))
    u.requires_grad_()
    times = interleaved({n: with_backward(r, u, module) for n, r in runs.items()}, rounds)
    report(f"{title}, forward and backward", times)


def mamba2(rounds: int) -> None:
    """The block of mamba2-130m."""
    torch.manual_seed(0)
    module = kt.Mamba2(768)
    others = {f"torch, grouped, {n}": (lambda u, n=n: torch_blocks.mamba2(module, u, torch_blocks.ssd_grouped, n))
              for n in (64, 128)}
    others["torch, einsum, 64"] = lambda u: torch_blocks.mamba2(module, u, torch_blocks.ssd_einsum, 64)
    compare("Mamba-2 d 768, s 2048, b 1, f32", module, torch.randn(1, 2048, 768), others, rounds)


def compiled(rounds: int) -> None:
    """Blocks of Mamba-2 of several sizes against the plain formulation under torch.compile (Inductor, which needs g++)."""
    for d, length in ((256, 64), (256, 1024), (768, 64), (768, 256), (768, 2048)):
        torch.manual_seed(0)
        torch._dynamo.reset()
        module = kt.Mamba2(d)
        run = torch.compile(lambda u, m=module: torch_blocks.mamba2(m, u, torch_blocks.ssd_grouped, 64), fullgraph=True)
        compare(f"Mamba-2 d {d}, s {length}, b 1, f32", module, torch.randn(1, length, d), {"torch.compile, 64": run}, rounds)


def mamba1(rounds: int) -> None:
    """The block of mamba-130m."""
    torch.manual_seed(0)
    module = kt.Mamba(768)
    others = {"torch, loop": lambda u: torch_blocks.mamba1(module, u, torch_blocks.scan_loop)}
    compare("Mamba-1 d 768, s 2048, b 1, f32", module, torch.randn(1, 2048, 768), others, max(1, rounds // 3))


def mamba3(rounds: int) -> None:
    """A Mamba-3 block of the same width, against its own ops one by one."""
    torch.manual_seed(0)
    module = kt.Mamba3(768)
    others = {"krait, op by op": lambda u: module.out_proj(module._mix_op_by_op(module.in_proj(u), None, None)[0])}
    compare("Mamba-3 d 768, s 2048, b 1, f32", module, torch.randn(1, 2048, 768), others, rounds)


def best_of(run: Callable[[], Any], count: int = 300, rounds: int = 20) -> float:
    best = float("inf")
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(count):
            run()
        best = min(best, (time.perf_counter() - start) / count)
    return best * 1e6


def overhead(rounds: int) -> None:
    """A call of eight operands whose kernel has next to nothing to do, in microseconds."""
    from krait import _core

    x, da, b = torch.randn(1, 1, 1, 4), torch.zeros(1, 1, 1), torch.randn(1, 1, 1, 4)
    d, initial = torch.randn(1), torch.zeros(1, 1, 4, 4)
    y, final = torch.empty(1, 1, 1, 4), torch.empty(1, 1, 4, 4)
    views = (x, b, b, da, da, None, d, initial, None, None, None, None, y, final)
    context = kt.ops.kernels.context(x.device)
    op, torch_op = _core.raw_ops["ssd"], torch.ops.krait.ssd
    grown = x.clone().requires_grad_()
    print(f"_core.raw, 7 operands, 2 results     {best_of(lambda: _core.raw(context, op, views)):6.2f} us")
    with torch.no_grad():
        print(f"torch.ops.krait.ssd                  "
              f"{best_of(lambda: torch_op(x, da, da, b, b, d, initial, None, 0)):6.2f} us")
    print(f"torch.ops.krait.ssd, with autograd   {best_of(lambda: torch_op(grown, da, da, b, b, d, initial, None, 0)):6.2f} us")
    del rounds


def imports(rounds: int) -> None:
    """Milliseconds of import krait, and of krait.torch beyond torch, each in a new process; the best."""
    def seconds(before: str, code: str) -> float:
        program = f"{before}\nimport time\nt = time.perf_counter()\n{code}\nprint(time.perf_counter() - t)"
        path = os.pathsep.join(sys.path[1:])
        return min(float(subprocess.run([sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": path}, check=True,
                                        capture_output=True, text=True).stdout) for _ in range(max(3, rounds // 2)))

    print(f"import krait                         {seconds('import numpy', 'import krait') * 1e3:6.1f} ms, numpy loaded")
    print(f"import krait                         {seconds('', 'import krait') * 1e3:6.1f} ms")
    print(f"import krait.torch                   {seconds('import torch', 'import krait.torch') * 1e3:6.1f} ms, torch loaded")


CASES = {"overhead": overhead, "imports": imports, "mamba2": mamba2, "compiled": compiled, "mamba1": mamba1, "mamba3": mamba3}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--case", choices=CASES, action="append")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    print(f"torch {torch.__version__}, {given.threads} threads, OMP_WAIT_POLICY={os.environ.get('OMP_WAIT_POLICY', 'unset')}, "
          f"{kt.ops.kernels.context(torch.device('cpu'))}")
    for name in given.case or CASES:
        CASES[name](given.rounds)


if __name__ == "__main__":
    main()
