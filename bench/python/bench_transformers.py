#!/usr/bin/env python3
"""transformers' Mamba2 on the CPU without and with krait.compat, in alternating rounds of one run.

    python bench/python/bench_transformers.py [--layers 24] [--rounds 5] [--threads N] [--linear] [--cpu-time] [CASE...]

Cases: prefill (a forward of 512 tokens with a cache), decode (16 single tokens), training (forward and backward of 512
tokens). Prints for each case the best and the median time of both and the ratio of the best ones. The shape is that of
the 130m model: d 768, 24 heads of 64, state 128. Weights are random. Needs transformers 5.15 or newer.
"""

from __future__ import annotations

import argparse
import statistics
import time

import krait.torch  # before torch, whose worker threads then sleep between operations
import torch
from transformers import Mamba2Config, Mamba2ForCausalLM
from transformers.models.mamba2 import modeling_mamba2

from krait._compat import transformers_patch
import krait.compat
from krait.torch.modules import Linear

PROMPT, STEPS = 512, 16


class Switch:
    """Puts the functions of Krait into the model file and takes them out again."""

    def __init__(self, linear: list) -> None:
        self.linear = linear
        self.cells = list(transformers_patch._wrapped_functions(modeling_mamba2))
        without = [self._read(c) for c in self.cells]
        krait.compat.install(force=True)
        self.states = {False: without, True: [self._read(c) for c in self.cells]}

    @staticmethod
    def _read(cells: dict) -> tuple:
        return tuple(cells[name].cell_contents for name in ("implementation", "applicable_params", "is_new_implementation"))

    def __call__(self, on: bool) -> None:
        for layer in self.linear:
            layer.__class__ = Linear if on else torch.nn.Linear
        for cells, values in zip(self.cells, self.states[on]):
            for name, value in zip(("implementation", "applicable_params", "is_new_implementation"), values):
                cells[name].cell_contents = value


def make(layers: int) -> Mamba2ForCausalLM:
    torch.manual_seed(1)
    config = Mamba2Config(vocab_size=50288, hidden_size=768, num_heads=24, head_dim=64, state_size=128, n_groups=1,
                          num_hidden_layers=layers, chunk_size=256, tie_word_embeddings=True)
    return Mamba2ForCausalLM(config)


def prefill(model: torch.nn.Module, ids: torch.Tensor) -> float:
    model.eval()
    with torch.inference_mode():
        begin = time.perf_counter()
        model(ids, use_cache=True, logits_to_keep=1)
        return time.perf_counter() - begin


def decode(model: torch.nn.Module, ids: torch.Tensor) -> float:
    """Seconds for each token."""
    model.eval()
    with torch.inference_mode():
        cache = model(ids[:, :16], use_cache=True, logits_to_keep=1).cache_params
        begin = time.perf_counter()
        for i in range(STEPS):
            model(ids[:, i:i + 1], cache_params=cache, use_cache=True)
        return (time.perf_counter() - begin) / STEPS


def training(model: torch.nn.Module, ids: torch.Tensor) -> float:
    model.train()
    model.zero_grad(set_to_none=True)
    begin = time.perf_counter()
    model(ids, labels=ids).loss.backward()
    return time.perf_counter() - begin


CASES = {"prefill": prefill, "decode": decode, "training": training}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=0, help="of torch and Krait; default: torch's")
    parser.add_argument("--linear", action="store_true", help="with krait.compat.use_linear, too")
    parser.add_argument("--cpu-time", action="store_true", help="of all threads, for one thread on a busy machine")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    if options.cpu_time:
        time.perf_counter = time.process_time
    model = make(options.layers)
    switch = Switch([m for m in model.modules() if type(m) is torch.nn.Linear] if options.linear else [])
    ids = torch.randint(0, 50288, (1, PROMPT), generator=torch.Generator().manual_seed(2))
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {options.layers} layers, f32, b 1")
    print(f"{'case':10} {'without: best':>14} {'median':>8} {'with: best':>14} {'median':>8} {'ratio':>7}")
    for name in options.cases or CASES:
        times: dict = {False: [], True: []}
        for i in range(options.rounds + 1):  # the first one is not counted
            for on in (False, True):
                switch(on)
                seconds = CASES[name](model, ids)
                if i:
                    times[on].append(1000 * seconds)
        row = [f(times[on]) for on in (False, True) for f in (min, statistics.median)]
        print(
            f"{name:10} {row[0]:11.1f} ms {row[1]:8.1f} {row[2]:11.1f} ms {row[3]:8.1f} {row[0] / row[2]:7.2f}", flush=True
        )


if __name__ == "__main__":
    main()
