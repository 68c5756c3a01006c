"""Stubs and annotations: mypy --strict over the package and over a program, stubtest, and the examples of docstrings."""

from __future__ import annotations

import doctest
import importlib
import os
import pkgutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import krait

PACKAGE = Path(krait.__file__).parent
# Packages whose own requirements may be missing are checked by their tests.
APART = ("torch", "compat", "_compat", "hf")


def modules() -> list[str]:
    names = [m.name for m in pkgutil.walk_packages([str(PACKAGE)], "krait.")]
    return ["krait", *(n for n in names if n.split(".")[1] not in (*APART, "__main__"))]


@pytest.mark.parametrize("name", modules())
def test_examples(name: str) -> None:
    failed, _ = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert failed == 0


@pytest.mark.parametrize("kind", [krait.Context, krait.Array])
def test_examples_of_types_in_c(kind: type) -> None:
    found = doctest.DocTestFinder().find(kind, kind.__name__, globs={})
    runner = doctest.DocTestRunner()
    for one in found:
        runner.run(one)
    assert runner.tries > 0 and runner.failures == 0


def test_every_function_in_c_has_a_signature() -> None:
    import inspect

    from krait import _core

    for name, thing in vars(_core).items():
        if callable(thing) and not isinstance(thing, type):
            assert thing.__doc__ and inspect.signature(thing), name
        if isinstance(thing, type) and not issubclass(thing, Exception):
            for attribute, method in vars(thing).items():
                if callable(method) and not attribute.startswith("__"):
                    assert method.__doc__ and inspect.signature(method), f"{name}.{attribute}"


@pytest.mark.slow
def test_mypy(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    # By name, as programs import them; a package that is not installed is found by its folder.
    names = [option for name in modules() for option in ("-m", name)]
    apart = {} if "-packages" in PACKAGE.parent.name else {"MYPYPATH": str(PACKAGE.parent)}
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir=/dev/null", *names],
        capture_output=True, text=True, check=False, cwd=tmp_path, env={**os.environ, **apart},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
def test_stubtest(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    # The interpreter shows the buffer protocol of C as a method from 3.12 on.
    allowed = tmp_path / "allowed"
    allowed.write_text("" if sys.version_info >= (3, 12) else "krait._core.Array.__buffer__\n")
    done = subprocess.run(
        [sys.executable, "-m", "mypy.stubtest", "krait._core", "--concise", "--allowlist", str(allowed)],
        capture_output=True, text=True, check=False, cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": ""},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


PROGRAM = """
    import krait
    import numpy as np

    model = krait.load("folder", device="cpu", dtype="bf16")
    for piece in model.generate("Once", max_tokens=4, temperature=0.8):
        text: str = piece
    logits, state = model.forward(np.array([[1, 2]]))
    states: krait.State = state.select([0])
    loss, grads = model.loss_and_grads([[1, 2, 3]])
    value: float = loss
    run: krait.Run = krait.train("notes.txt", steps=3, on_step=lambda progress: progress.loss > 0.1)
    run = run.resume(steps=5, lr=1e-3)
    curve: np.ndarray[tuple[int, ...], np.dtype[np.float64]] = run.metrics["loss"]
    perplexity: float = model.eval("text.txt").perplexity
    passed: int = krait.check(quick=True).passed
    context = krait.Context(threads=2)
"""
WRONG = """
    import krait

    krait.Run("notes").resume(step=5)
    krait.train("notes.txt", on_step="loud")
    krait.load(3)
    krait.check(quick=True).passt
"""


@pytest.mark.slow
def test_mypy_of_a_program(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    (tmp_path / "right.py").write_text(textwrap.dedent(PROGRAM))
    (tmp_path / "wrong.py").write_text(textwrap.dedent(WRONG))
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir=/dev/null", "right.py", "wrong.py"]
    lines = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path).stdout.splitlines()
    assert not [line for line in lines if line.startswith("right.py")], lines
    for number in (4, 5, 6, 7):
        assert any(line.startswith(f"wrong.py:{number}:") for line in lines), (number, lines)
