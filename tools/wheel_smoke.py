"""What must work after `pip install` of the wheel: import, train, load, generate, check, the program. Run by tools/wheel."""

import pathlib
import subprocess
import sys
import tempfile
import time

began = time.perf_counter()
import krait  # noqa: E402  timed

seconds = time.perf_counter() - began
folder = pathlib.Path(tempfile.mkdtemp())
(folder / "notes.txt").write_text("to be, or not to be: that is the question. " * 40)
shape = dict(d_model=32, layers=1, batch=2, length=32)
run = krait.train(folder / "notes.txt", out=folder / "run", steps=5, progress=False, **shape)
assert len(run.metrics["loss"]) == 5, run.metrics
model = krait.load(folder / "run")
ids = model.generate("to be", max_tokens=8, temperature=0, stream=False).ids
program = pathlib.Path(sys.executable).parent / "krait"
version = subprocess.run([program, "--version"], check=True, capture_output=True, text=True).stdout.strip()
assert version == f"krait {krait.__version__}", version
command = [program, "generate", folder / "run", "-p", "to be", "-n", "8", "--temperature", "0"]
answer = subprocess.run(command, check=True, capture_output=True).stdout
assert bytes(ids) in answer, (answer, ids)
checks = krait.check(quick=True)
assert checks.failed == 0 and checks.passed > 0, checks
print(f"passed (import {1000 * seconds:.0f} ms)")
