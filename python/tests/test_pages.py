"""The programs of docs/python-numpy.md, with what their comments say that they print."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

PAGE = ROOT / "docs" / "python-numpy.md"
PROGRAMS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE) if PAGE.exists() else []


@pytest.mark.slow
@pytest.mark.skipif(not PROGRAMS, reason="docs/python-numpy.md is not here")
def test_programs(tmp_path: Path) -> None:
    for program in PROGRAMS:
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=tmp_path)
        assert done.returncode == 0 and not done.stderr, program + done.stderr
        told = re.findall(r"^print\(.*\) +# (.*)$", program, re.MULTILINE)
        assert done.stdout.splitlines()[: len(told)] == told, program
