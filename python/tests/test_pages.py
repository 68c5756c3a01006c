"""The programs of documentation pages, with what their comments say that they print."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

PAGES = {"python-numpy.md": "numpy", "python-torch.md": "torch"}  # and what they need


def programs(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / page).read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.slow
@pytest.mark.skipif(not (ROOT / "docs").is_dir(), reason="the documentation is not here")
@pytest.mark.parametrize("page", PAGES)
def test_programs(page: str, tmp_path: Path) -> None:
    if importlib.util.find_spec(PAGES[page]) is None:
        pytest.skip(f"{PAGES[page]} is not installed")
    found = programs(page)
    assert found, f"docs/{page} has no programs"
    for program in found:
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=tmp_path)
        assert done.returncode == 0 and not done.stderr, program + done.stderr
        told = re.findall(r"^print\(.*\) +# (.*)$", program, re.MULTILINE)
        assert done.stdout.splitlines()[: len(told)] == told, program
