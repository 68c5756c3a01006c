"""The part of docs/perf.md that is about a GPU, from the output of krait-bench --device cuda --json; see perf_doc."""

HEADING = "## On a GPU\n"

# Case, description, official median in ms (None: none published), required, goal.
CORES = [
    ("ssd/mamba2-b8-s2048-h24", "Mamba-2 core, b 8, s 2048, h 24: forward", 0.234, 0.12, 0.09),
    ("ssd-train/mamba2-b8-s2048-h24", "Mamba-2 core, b 8, s 2048, h 24: forward and backward", 1.126, 0.60, 0.45),
    ("ssd/mamba2-b8-s4096-h80", "Mamba-2 core, b 8, s 4096, h 80: forward", 1.408, 0.75, 0.55),
    ("ssd-train/mamba2-b8-s4096-h80", "Mamba-2 core, b 8, s 4096, h 80: forward and backward", 6.091, 3.2, 2.4),
    ("ssd/mamba3-b8-s2048-h24", "Mamba-3 SISO core, b 8, s 2048, h 24: forward", 0.460, 0.20, 0.15),
    ("ssd-train/mamba3-b8-s2048-h24", "Mamba-3 SISO core, b 8, s 2048, h 24: forward and backward", 1.756, 0.85, 0.6),
    ("ssd/mamba3-b8-s4096-h80", "Mamba-3 SISO core, b 8, s 4096, h 80: forward", 2.481, 1.2, 0.9),
    ("ssd-train/mamba3-b8-s4096-h80", "Mamba-3 SISO core, b 8, s 4096, h 80: forward and backward", 9.640, 4.8, 3.5),
]
TOKENS = [
    ("train/130m/mamba2", "krait/bf16", "training, 130m-size Mamba-2, b 8, s 2048", "105 k, 184 k as a graph", 220e3, 300e3),
    ("train/130m/mamba3", "krait/bf16", "training, 130m-size Mamba-3, b 8, s 2048", "92.8 k, 177 k as a graph", 220e3, 300e3),
    ("decode/mamba2-130m-b1", "krait/bf16", "decoding, mamba2-130m in bf16, batch 1", "1506", 3000, 5000),
    ("decode/mamba2-130m-b64", "krait/bf16", "decoding, mamba2-130m in bf16, batch 64", "47.7 k", 90e3, 130e3),
]
# Official medians of whole blocks in ms: single calls with a flushed L2 cache, and a CUDA graph replayed back to back.
BLOCKS = {
    "block/mamba2-d768": (0.577, 0.569),
    "block-train/mamba2-d768": (2.837, 2.772),
    "block/mamba2-d2560": (5.429, 5.971),
    "block-train/mamba2-d2560": (20.98, 22.10),
    "block/mamba3-d768": (1.038, 1.025),
    "block-train/mamba3-d768": (3.019, 2.942),
    "block/mamba3-d2560": (8.148, 8.221),
    "block-train/mamba3-d2560": (23.48, 23.85),
}


def number(x):
    return f"{x:.2f}" if x < 10 else f"{x:.1f}" if x < 100 else f"{x:.0f}"


def ms(r):
    v = r["call_ns"] / 1e6
    return f"{v:.3f}" if v < 1 else f"{v:.2f}"


def table(head, rows):
    lines = [head, ["---"] * len(head)] + rows
    return "\n".join("| " + " | ".join(str(c) for c in cells) + " |" for cells in lines) + "\n"


class Run:
    def __init__(self, rows):
        self.rows = rows

    def row(self, case, who="krait/bf16"):
        return next((r for r in self.rows if (r["case"], r["who"]) == ("cuda/" + case, who)), None)

    def all(self, prefix):
        return [r for r in self.rows if r["case"].startswith("cuda/" + prefix)]


def verdict(value, reach, goal, less):
    ok, best = (value <= reach, value <= goal) if less else (value >= reach, value >= goal)
    return "yes, and the goal" if best else "yes" if ok else "**no**"


def targets(run):
    rows = []
    for case, what, official, reach, goal in CORES:
        r = run.row(case)
        if r:
            rows.append((what + ", ms", official, f"<= {reach}", goal, ms(r), verdict(r["call_ns"] / 1e6, reach, goal, True)))
    for who, which in (("krait/rotary", "half of the pairs rotated"), ("krait/rotary-all", "all pairs rotated")):
        for case, what, official, reach, goal in CORES:
            r = run.row(case, who)
            if r:
                rows.append((f"{what}, with bias and {which}, ms", official if who == "krait/rotary" else "-", f"<= {reach}", goal,
                             ms(r), verdict(r["call_ns"] / 1e6, reach, goal, True)))
        r = run.row("ssd-train/mamba3-b8-s4096-h80", who)
        if r and "extra_bytes" in r:
            v = r["extra_bytes"] / 2**30
            rows.append((f"Mamba-3 SISO core, b 8, s 4096, h 80, {which}: extra memory (results, gradients, scratch), GiB",
                         5.3 if who == "krait/rotary" else "-", "<= 1.5", "-", f"{v:.2f}", verdict(v, 1.5, 0, True)))
    one, eight = run.row("ssd/mamba2-b1-s8192-h24"), run.row("ssd/mamba2-b8-s2048-h24")
    if one and eight:
        v = eight["tokens_per_s"] / one["tokens_per_s"]
        rows.append(("Mamba-2 core, b 1, s 8192, h 24, forward: time a token over that of b 8", "-", "<= 2", "-", f"{v:.2f}",
                     verdict(v, 2, 0, True)))
    for case, who, what, official, reach, goal in TOKENS:
        r = run.row(case, who)
        if r:
            v = r["tokens_per_s"]
            rows.append((what + ", tokens/s", official, f">= {reach:.0f}", f"{goal:.0f}", number(v), verdict(v, reach, goal, False)))
    r = run.row("ssd-step/mamba2-b256-h80", "krait/exact")
    if r:
        rows.append(("a token's state, b 256, h 80, f32, read and written, TB/s", "3.6", ">= 3.6", "4.26",
                     f'{r["median"] / 1e3:.2f}', verdict(r["median"], 3600, 4260, False)))
    return table(("target", "official", "to reach", "goal", "measured", "met"), rows)


def cores(run):
    rows = []
    for r in run.all("ssd/") + run.all("ssd-train/"):
        if r["who"].startswith("krait"):
            rows.append((r["case"][5:], r["who"][6:], ms(r), number(r["median"] / 1e3), number(r["tokens_per_s"] / 1e6),
                         f'{r["extra_bytes"] / 2**20:.0f}', r.get("by", "-")))
    return table(("case", "tensors", "ms", "TFLOP/s", "M tokens/s", "extra MiB", "by"), rows)


def passes(run):
    rows = []
    for name in ("copy", "norm", "conv", "scan", "loss", "adamw", "ssd-step", "decode"):
        for r in run.all(name):
            if r["who"] == "copy" and name != "copy":
                continue
            ratio = r["ratios"].get("copy")
            rows.append((r["case"][5:], r["who"], number(r["call_ns"] / 1e3), number(r["median"]),
                         f'{ratio["median"]:.2f}' if ratio else "-", number(r["tokens_per_s"]) if "tokens_per_s" in r else "-"))
    return table(("case", "who", "us", "GB/s", "/ copy", "tokens/s"), rows)


def products(run):
    rows = []
    for r in run.all("gemm/"):
        ratio = r["ratios"].get("cuBLASLt/bf16")
        rows.append((r["case"][10:], r["who"], ms(r), number(r["median"] / 1e3), f'{ratio["median"]:.2f}' if ratio else "-"))
    return table(("case", "who", "ms", "TFLOP/s", "/ cuBLASLt in bf16"), rows)


def blocks(run):
    rows = []
    for r in run.all("block"):
        official = [f"{v:.3f}" if v < 10 else f"{v:.2f}" for v in BLOCKS.get(r["case"][5:], ())] or ["-", "-"]
        rows.append((r["case"][5:], ms(r), *official, number(r["median"] / 1e3), f'{r["extra_bytes"] / 2**20:.0f}'))
    return table(("case", "ms", "official, single calls, ms", "official, as a graph, ms", "TFLOP/s", "extra MiB"), rows)


def training(run):
    rows = [(r["case"][11:], r["who"][6:], ms(r), number(r["tokens_per_s"]), number(r["median"] / 1e3),
             f'{r["extra_bytes"] / 2**30:.2f}') for r in run.all("train/")]
    return table(("case", "products", "ms a step", "tokens/s", "TFLOP/s", "GiB at most"), rows)


def text_of(data):
    run = Run(data["rows"])
    return (f'{HEADING}{data["machine"]["device"]}, by\n'
            "```\nbuild/cuda/krait-bench --device cuda --json gpu.json\nbench/perf_doc gpu.json docs/perf.md\n```\n"
            "Medians; a sample is some milliseconds of queued calls with one wait at its end. Official figures are those of\n"
            "the Triton kernels on an H200, launches hidden, at the same shapes with bf16 tensors. Rows `bf16` have bf16\n"
            "tensors throughout, as a network with bf16 precision passes them to the core (B and C of Mamba-3 and their\n"
            "gradients stay f32 where the core rotates them). Rows `bf16-products` have f32 tensors whose products are\n"
            "rounded to bf16. `exact` is f32. `by` is the code path for the sizes. The official kernel of Mamba-3 also adds\n"
            "biases to B and C and rotates them, by default half of the pairs; rows `rotary` do the same inside the core,\n"
            "rows `rotary-all` rotate every pair, in the others B and C are already rotated. Official blocks are measured\n"
            "twice: as single calls with a flushed L2 cache and hidden launches, and as a CUDA graph replayed back to back,\n"
            "which is closer to our samples. The graph is not always faster. Official figures of the core and of decoding come\n"
            "from another day than those of blocks and training; repeated, they differed by up to 6 %.\n\n"
            + "\n".join(f"### {title}\n{text}" for title, text in (
                ("Targets on a GPU", targets(run)), ("The state space core on a GPU", cores(run)),
                ("Products on a GPU", products(run)), ("Whole blocks on a GPU, products in bf16", blocks(run)),
                ("Kernels of a GPU that move memory, and tokens", passes(run)), ("Training on a GPU", training(run)))
                if text.count("\n") > 2))
