"""krait.torch: examples of its documentation, annotations, and what an import does."""

from __future__ import annotations

import doctest
import importlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import krait  # noqa: E402

PACKAGE = Path(krait.__file__).parent
MODULES = sorted(p.stem for p in (PACKAGE / "torch").glob("*.py"))


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    module = importlib.import_module("krait.torch" if name == "__init__" else f"krait.torch.{name}")
    names = {"torch": torch, **vars(module)}
    assert doctest.testmod(module, globs=names, optionflags=doctest.ELLIPSIS).failed == 0


def test_annotations(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    # Away from site-packages, where modules of other packages would shadow those that mypy has.
    shutil.copytree(PACKAGE, tmp_path / "krait", ignore=shutil.ignore_patterns("__pycache__"))
    lenient = ["--allow-untyped-calls", "--no-warn-return-any"]  # methods of Tensor and Library without annotations
    done = subprocess.run([sys.executable, "-m", "mypy", "--strict", *lenient, "-p", "krait.torch"], capture_output=True,
                          text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout


def run_python(program: str, **environment: str) -> str:
    given = {key: value for key, value in os.environ.items() if key != "OMP_WAIT_POLICY"}
    done = subprocess.run([sys.executable, "-c", program], env={**given, **environment}, check=True, capture_output=True,
                          text=True)
    return done.stdout.strip()


def test_import_krait_does_not_import_torch() -> None:
    assert run_python("import sys, krait; print('torch' in sys.modules)") == "False"


def test_the_wait_policy_is_set_before_torch_is_loaded_and_never_over_one_s_own() -> None:
    show = "print(os.environ.get('OMP_WAIT_POLICY'))"
    assert run_python(f"import os, krait.torch; {show}") == "PASSIVE"
    assert run_python(f"import os, torch, krait.torch; {show}") == "None"
    assert run_python(f"import os, krait.torch; {show}", OMP_WAIT_POLICY="ACTIVE") == "ACTIVE"


def test_a_forked_child_computes() -> None:
    """With one thread: OpenMP's own workers do not survive a fork."""
    program = """
import os, torch
torch.set_num_threads(1)
import krait.torch as kt
block, u = kt.Mamba2(32, d_state=16, headdim=8), torch.randn(1, 5, 32)
wanted = block(u)
child = os.fork()
if child == 0:
    os._exit(0 if torch.equal(block(u), wanted) else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), torch.equal(block(u), wanted))
"""
    assert run_python(program) == "0 True"
