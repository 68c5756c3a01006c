"""Import time, first token from a cold process, and pip install from an empty environment.

    python bench/python/bench_import.py                        # the installed package
    python bench/python/bench_import.py --model mamba2-130m    # a folder to load; without it a new model of the same shape
    python bench/python/bench_import.py --wheel build/dist/krait_ssm-*.whl

Each figure is the median and the least of --rounds processes. Goals: import below 80 ms, of which NumPy takes most; first
token of 130 M parameters below 1 s; from an empty environment to the first token below 60 s.
"""

import argparse
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

IMPORT = """
import time
a = time.perf_counter()
import numpy
b = time.perf_counter()
import krait
c = time.perf_counter()
print((c - a) * 1e3, (c - b) * 1e3)
"""
TOKEN = """
import sys, krait
krait.load(sys.argv[1], tokenizer="bytes").generate("Once upon a time", max_tokens=1, stream=False)
"""
MODEL = """
import sys, krait
krait.new("mamba2", d_model=768, n_layers=24, vocab_size=50288).save(sys.argv[1])
"""


def timed(command: list[object]) -> tuple[float, str]:
    """Seconds of a process, and what it printed."""
    began = time.perf_counter()
    done = subprocess.run([str(part) for part in command], check=True, capture_output=True, text=True)
    return time.perf_counter() - began, done.stdout


def line(name: str, values: list[float], unit: str, goal: str) -> None:
    """Prints a row of the table."""
    print(f"{name:<44} {statistics.median(values):9.3g} {min(values):9.3g} {unit:<3} {goal}")


def bench_install(wheel: str, model: str, folder: pathlib.Path) -> None:
    """An empty environment, pip install, and the first token in it."""
    began = time.perf_counter()
    timed([sys.executable, "-m", "venv", folder / "venv"])
    made = time.perf_counter()
    timed([folder / "venv/bin/pip", "-q", "install", wheel])
    installed = time.perf_counter()
    timed([folder / "venv/bin/python", "-c", TOKEN, model])
    line("empty environment (venv)", [made - began], "s", "")
    line("pip install, NumPy from PyPI", [installed - made], "s", "")
    line("empty environment to first token", [time.perf_counter() - began], "s", "< 60")


def main() -> None:
    """Runs all."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--model", help="a model folder")
    parser.add_argument("--wheel", help="measure its installation, too")
    parser.add_argument("--rounds", type=int, default=9)
    args = parser.parse_args()
    folder = pathlib.Path(tempfile.mkdtemp())
    model = args.model
    if not model:
        model = str(folder / "model")
        timed([sys.executable, "-c", MODEL, model])
    print(f"{'':<44} {'median':>9} {'least':>9}     goal")
    imports = [[float(x) for x in timed([sys.executable, "-c", IMPORT])[1].split()] for _ in range(args.rounds)]
    line("import krait, with NumPy", [row[0] for row in imports], "ms", "< 80")
    line("import krait after NumPy", [row[1] for row in imports], "ms", "")
    empty = [timed([sys.executable, "-c", "import numpy"])[0] for _ in range(args.rounds)]
    line("a process that imports NumPy only", empty, "s", "")
    tokens = [timed([sys.executable, "-c", TOKEN, model])[0] for _ in range(args.rounds)]
    line("a process to its first token", tokens, "s", "< 1")
    if args.wheel:
        bench_install(args.wheel, model, folder)


if __name__ == "__main__":
    main()
