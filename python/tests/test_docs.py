"""What the documentation shows: programs of README.md and docs/python.md, the cells of docs/python-notebook.md, examples.
KR_SOURCE names the source tree, which has them."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

import krait

SOURCE = pathlib.Path(os.environ["KR_SOURCE"]) if "KR_SOURCE" in os.environ else None
NEEDS = {"torch": "torch", "transformers": "transformers", "matplotlib": "matplotlib", "jax": "jax"}


def blocks(page: str) -> list[str]:
    """The programs of a page, without those that are only shown (a block that begins with "# not run")."""
    if SOURCE is None:
        return []
    text = (SOURCE / page).read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def programs() -> list[object]:
    pages = ["README.md", "docs/python.md"]
    return [pytest.param(code, id=f"{page}-{i + 1}") for page in pages for i, code in enumerate(blocks(page))]


def examples() -> list[object]:
    found = sorted((SOURCE / "examples" / "python").glob("*.py")) if SOURCE is not None else []
    return [pytest.param(path.read_text(encoding="utf-8"), id=path.name) for path in found]


def run(code: str, folder: pathlib.Path) -> None:
    for name in set(re.findall(r"^ *(?:import|from) (\w+)", code, re.MULTILINE)) & set(NEEDS):
        pytest.importorskip(name)
    path = folder / "program.py"
    path.write_text(code, encoding="utf-8")
    done = subprocess.run([sys.executable, path], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not done.stderr, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("code", [*programs(), *examples()])
def test_program(code, tmp_path):
    run(code, tmp_path)


@pytest.mark.slow
def test_notebook_page(tmp_path):
    if SOURCE is None:
        pytest.skip("KR_SOURCE is not set")
    done = subprocess.run(
        [sys.executable, SOURCE / "tools" / "notebook_page", tmp_path], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    for name in ("python-progress.svg", "python-loss.svg"):
        drawn = (tmp_path / name).read_text(encoding="utf-8")
        kept = (SOURCE / "docs" / name).read_text(encoding="utf-8")
        # The same picture, but for figures of this machine: its speed, and last digits of another instruction set.
        assert re.sub(r"[\d.]+", "", drawn)[:200] == re.sub(r"[\d.]+", "", kept)[:200]


def test_public_names_have_docstrings_and_a_line_in_the_docs():
    page = (SOURCE / "docs" / "python.md").read_text(encoding="utf-8") if SOURCE is not None else None
    for name in krait.__all__:
        value = getattr(krait, name)
        if not name.startswith("__"):
            assert value.__doc__, name
            assert page is None or re.search(rf"\b{name}\b", page), f"docs/python.md does not have {name}"


@pytest.mark.slow
def test_import_is_light():
    code = "import sys, krait; print(*sys.modules)"
    loaded = set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())
    code = "import sys, numpy; print(*sys.modules)"
    numpy = set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())
    ours = {name for name in loaded - numpy if not name.startswith("krait")}
    # Modules of the standard library that cost little; neither torch nor IPython, subprocess, or a second NumPy.
    assert not ours & {"torch", "IPython", "subprocess", "asyncio", "multiprocessing", "matplotlib", "krait.data"}
    assert "krait._training" not in loaded and "krait.data" not in loaded


@pytest.mark.slow
def test_import_starts_no_thread():
    code = "import os, krait; print(len(os.listdir('/proc/self/task')))"
    base = "import os, numpy; print(len(os.listdir('/proc/self/task')))"
    counts = [
        subprocess.run([sys.executable, "-c", c], capture_output=True, text=True, check=True).stdout for c in (code, base)
    ]
    assert counts[0] == counts[1]
