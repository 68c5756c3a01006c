"""What must work with the wheel of krait-ssm-cuda13 next to that of krait-ssm: its plug-in is found, says what there is, and
on a GPU computes what the CPU does; one of another version is refused. Run by tools/wheel, here without a GPU."""

import contextlib
import pathlib
import subprocess
import sys
import tempfile
import time

import numpy as np

import krait
from krait import _core
from krait._plugins import find_cuda

plugin = find_cuda()
assert plugin is not None, "krait_cuda13 is not installed"
assert list(plugin.parent.iterdir()) == [plugin], list(plugin.parent.iterdir())

# Another version: the same file with another interface in it. Nothing of it is used, and the CPU works as before.
data = plugin.read_bytes()
mine = krait.__version__.encode() + b"-"
place = data.index(mine)
other = pathlib.Path(tempfile.mkdtemp()) / "libkrait_cuda.so"
other.write_bytes(data[:place] + data[place : place + len(mine)].replace(b"0", b"9") + data[place + len(mine) :])
answer = ""
try:
    _core.load_device(str(other))
except krait.UnsupportedError as error:
    answer = str(error)
assert "it is a plug-in for krait 9" in answer and "install the same version of both" in answer, answer

shape = dict(d_model=64, n_layers=2, vocab_size=256, state_rank=16, per_head_dim=16)
ids = np.random.default_rng(1).integers(0, 256, (2, 96))


def on(device: str, family: str) -> krait.Model:
    return krait.new(family, device=device, seed=3, **shape)


def compare(family: str) -> float:
    """The worst error of logits and gradients, relative to the largest of each; greedy tokens are the same."""
    a, b = on("cpu", family), on("cuda", family)
    worst = 0.0
    (loss, grads), (other_loss, other_grads) = a.loss_and_grads(ids), b.loss_and_grads(ids)
    pairs = [("loss", np.array(loss), np.array(other_loss)), ("logits", a.logits(ids), b.logits(ids))]
    pairs += [(name, grads[name], other_grads[name]) for name in grads]
    for name, want, got in pairs:
        error = float(np.max(np.abs(got - want)) / max(np.max(np.abs(want)), 1e-6))
        # f32 with sums in another order: the tolerance of the kernels' conformance tests for whole networks
        assert error <= 1e-4, f"{family}, {name}: worst relative error {error:.2e}"
        worst = max(worst, error)
    want_ids = a.generate("to be", max_tokens=24, temperature=0, stream=False).ids
    got_ids = b.generate("to be", max_tokens=24, temperature=0, stream=False).ids
    assert got_ids == want_ids, (family, got_ids, want_ids)
    return worst


with contextlib.suppress(krait.Error):
    krait.Context(device="cpu")
assert "libkrait_cuda.so" not in pathlib.Path("/proc/self/maps").read_text().replace(str(other), ""), "loaded without need"
began = time.perf_counter()
lines = krait.devices()
seconds = time.perf_counter() - began
print("\n".join(lines))
assert lines[0] == "cpu" and f"cuda: loaded from {plugin}" in lines, lines
listed = subprocess.run([sys.executable, "-m", "krait", "info", "--devices"], check=True, capture_output=True, text=True)
assert listed.stdout.splitlines() == lines, listed.stdout
if not any(line.startswith("cuda:0 ") for line in lines):
    answer = ""
    try:
        krait.Context(device="cuda")
    except krait.UnsupportedError as error:
        answer = str(error)
    assert answer.startswith("ctx: device cuda:0: no GPU can be used: "), answer
    print(f"passed ({answer.removeprefix('ctx: ')})")
else:
    for family in ("mamba2", "mamba3"):
        print(f"{family}: cuda = cpu, worst relative error {compare(family):.1e}, 24 greedy tokens the same")
    checked = subprocess.run([sys.executable, "-m", "krait", "check", "--device", "cuda"], capture_output=True, text=True)
    assert checked.returncode == 0, checked
    print("krait check --device cuda:", checked.stdout.splitlines()[-1])
    print(f"passed (first list of devices {1000 * seconds:.0f} ms)")
