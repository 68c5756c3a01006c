"""transformers with and without krait.compat: the same loss, gradients, logits and greedy tokens, for every family and
version.

Each version runs in its own process: the installed one, and those unpacked in the folders that KRAIT_TEST_TRANSFORMERS
names, separated by ":", each with the packages that it needs in place of installed ones. docs/python-compat.md says how
to make them.
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from torch_cases import on_gpu  # noqa: E402
from transformers_models import FAMILIES  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
FOLDERS = [f for f in os.environ.get("KRAIT_TEST_TRANSFORMERS", "").split(os.pathsep) if f]
# Differences are max|a - b| / max|a| of each tensor. Both sides compute in f32 and sum in other orders; the noise of f32
# through two or three layers of these models was at most 2e-6 in logits and 4e-5 in gradients (zamba, whose gradient of
# dt_proj_bias is a small difference of large terms): five times that.
LOGITS, GRADIENT = 1e-5, 2e-4

# What versions up to 5.14 compute wrong without kernels is not compared (transformers_models.py): zamba2, nemotron_h and the
# mamba2 of 4.46 lose the state between chunks, the latter also mixes up groups and generates from a wrong place; falcon_h1
# generates without its cache.


def _run(folder, families, **environment):
    path = os.pathsep.join(filter(None, [folder, str(HERE), *sys.path]))
    done = subprocess.run([sys.executable, str(HERE / "transformers_models.py"), *families], capture_output=True, text=True,
                          timeout=1800, env=dict(os.environ, PYTHONPATH=path, OMP_NUM_THREADS="1", **environment))
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


_REPORTS: dict = {}


def _report(folder, device="cpu"):
    if (folder, device) not in _REPORTS:
        try:
            _REPORTS[folder, device] = _run(folder, [], KRAIT_TEST_DEVICE=device)
        except AssertionError as error:
            _REPORTS[folder, device] = error
    if isinstance(_REPORTS[folder, device], AssertionError):
        raise AssertionError(str(_REPORTS[folder, device]))
    return _REPORTS[folder, device]


WHERE = [(folder, "cpu") for folder in ("", *FOLDERS)] + [pytest.param("", "cuda", marks=on_gpu)]


@pytest.mark.parametrize("family", sorted(FAMILIES))
@pytest.mark.parametrize(("folder", "device"), WHERE)
def test_family(folder, device, family):
    report = _report(folder, device)
    if family not in report["families"]:
        pytest.skip(f"transformers {report['version']} has no {family}, or no kernels in it")
    found = report["families"][family]
    if found.get("error_without"):
        pytest.skip(f"transformers {report['version']} without Krait fails on {device}: {found['error_without'][-300:]}")
    assert not found.get("error_with"), found["error_with"]
    assert not found["missing"], f"gradients of one side only: {found['missing']}"
    assert found["calls"], "Krait's functions were not called"
    if "causal_conv1d_update" not in found["calls"]:
        assert found["generates_without_cache"], "single tokens did not use Krait's functions"
    for name, difference in found["differences"].items():
        limit = 0.0 if name.endswith("tokens") else GRADIENT if name.startswith("grad/") else LOGITS
        assert difference <= limit, f"{family} of {report['version']}: {name} differs by {difference:.3g}, limit {limit:g}"


@pytest.mark.parametrize("folder", ["", *FOLDERS])
def test_patched_classes(folder):
    """Old versions have classes to patch, new ones have none."""
    report = _report(folder)
    major, minor = map(int, report["version"].split(".")[:2])
    assert bool(report["patched"]) == ((major, minor) < (5, 15)), report["patched"]


@pytest.mark.parametrize("family", ["mamba", "mamba2", "bamba", "lfm2"])
def test_install_before_the_first_import(family):
    """The other order: names installed, then the model file imported."""
    found = _run("", [family], KRAIT_TEST_INSTALL_FIRST="1")["families"][family]
    assert found["calls"] and not found["missing"]
    for name, difference in found["differences"].items():
        assert difference <= (0.0 if name.endswith("tokens") else GRADIENT if name.startswith("grad/") else LOGITS), name


def test_unpacked_versions_were_given():
    if not FOLDERS:
        pytest.skip("no older versions of transformers: KRAIT_TEST_TRANSFORMERS names no folder (4 are known to work)")


def test_packed_rows():
    """Without a package transformers refuses seq_idx; with Krait's functions packed sequences are kept apart, in
    training, too."""
    code = """
import torch, transformers_models
import krait.compat
model = transformers_models.make("mamba2").backbone
ids = transformers_models.inputs(False)[0][:1]
packed = dict(seq_idx=torch.tensor([[0] * 7 + [1] * 12], dtype=torch.int32), use_cache=False)
try:
    model(ids, **packed)
except ValueError as error:
    assert "packed" in str(error), error
else:
    raise AssertionError("not refused")
krait.compat.install()
for mode in (model.eval, model.train):
    mode()
    together = model(ids, **packed)[0]
    apart = torch.cat([model(part, use_cache=False)[0] for part in ids.split([7, 12], dim=1)], dim=1)
    error = float((together - apart).abs().max() / apart.abs().max())
    assert error < 1e-5, error
"""
    path = os.pathsep.join(filter(None, [str(HERE), *sys.path]))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600,
                          env=dict(os.environ, PYTHONPATH=path))
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize("family", ["mamba", "mamba2"])
def test_compiled_models(family):
    """One graph without breaks, in inference and in training; the same numbers, since the same ops run."""
    code = f"""
import torch, transformers_models
import krait.compat
krait.compat.install()
model = transformers_models.make({family!r}).backbone
ids = transformers_models.inputs(False)[0]
for mode in (model.eval, model.train):
    mode()
    torch._dynamo.reset()
    wanted = model(ids, use_cache=False)[0]
    found = torch.compile(model, fullgraph=True, backend="aot_eager")(ids, use_cache=False)[0]
    error = float((found - wanted).detach().abs().max() / wanted.detach().abs().max())
    assert error < 1e-5, error
    found.sum().backward()
assert all(p.grad is not None for p in model.parameters())
"""
    path = os.pathsep.join(filter(None, [str(HERE), *sys.path]))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=900,
                          env=dict(os.environ, PYTHONPATH=path))
    assert done.returncode == 0, done.stderr[-2000:]
