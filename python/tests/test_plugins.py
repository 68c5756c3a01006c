"""The CUDA device of another distribution: found, loaded when it is first asked for, refused if it is of another version.

The mock device of the C tests stands in for CUDA: it has the processor's kernels and memory that the host cannot touch.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PLUGINS = Path(os.environ.get("KR_BUILD", "build/release")) / "tests" / "plugins"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (PLUGINS / "device_cuda.so").exists(), reason="the C tests are not built"),
]


def install(site: Path, plugin: str) -> str:
    """Puts a plug-in where the distribution krait-ssm-cuda13 has it; returns its path."""
    target = site / "krait_cuda13" / "libkrait_cuda.so"
    target.parent.mkdir(parents=True)
    shutil.copy(PLUGINS / f"{plugin}.so", target)
    return str(target)


def python(site: Path | None, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    env = {key: value for key, value in os.environ.items() if key not in ("KR_DEVICE", "KR_CUDA_PLUGIN")}
    if site is not None:
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(site), env.get("PYTHONPATH", "")]))
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=False, env={**env, **variables}
    )


def run(site: Path | None, code: str, **variables: str) -> str:
    done = python(site, "-c", code, **variables)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


HAS_CUDA = "import krait; assert 'no CUDA kernels' not in str(krait.devices())"
COMPUTES = """
import krait
import numpy as np

def is_loaded():
    return "libkrait_cuda.so" in open("/proc/self/maps").read()

fields = dict(d_model=16, n_layers=2, state_rank=8, per_head_dim=8, vocab_size=256, seed=7)
on_cpu = krait.new("mamba2", device="cpu", threads=2, **fields)
assert not is_loaded(), "loaded without need"
model = krait.new("mamba2", device="cuda:1", threads=2, **fields)
assert is_loaded() and model.context.device == "mock:1 runs late" and model.context.kernel("ssd") == "mock"
ids = np.arange(40).reshape(2, 20)
loss, grads = model.loss_and_grads(ids)
want, want_grads = on_cpu.loss_and_grads(ids)
assert loss == want, (loss, want)
for name, grad in want_grads.items():
    np.testing.assert_array_equal(grads[name], grad, err_msg=name)  # the kernels are the processor's
assert model.generate("ab", max_tokens=8, temperature=0, stream=False).ids == \\
    on_cpu.generate("ab", max_tokens=8, temperature=0, stream=False).ids
print("\\n".join(krait.devices()))
"""


@pytest.fixture(scope="module", autouse=True)
def without_cuda() -> None:
    if python(None, "-c", HAS_CUDA).returncode == 0:
        pytest.skip("the library has the device cuda itself")


def test_installed(tmp_path: Path) -> None:
    path = install(tmp_path, "device_cuda")
    lines = run(tmp_path, COMPUTES).splitlines()
    assert lines[0] == "cpu" and "mock:1 runs late" in lines and f"cuda: loaded from {path}" in lines, lines


def test_environment_asks_for_it(tmp_path: Path) -> None:
    install(tmp_path, "device_cuda")
    assert run(tmp_path, "import krait; print(krait.Context().device)", KR_DEVICE="cuda:0") == "mock:0 runs at once"


def test_not_installed() -> None:
    error = run(
        None,
        "import krait\n"
        "try:\n    krait.Context(device='cuda:2')\n"
        "except krait.UnsupportedError as error:\n    print(error)\n"
        "print(krait.devices()[-1])",
    ).splitlines()
    assert error[0].startswith("ctx: device cuda:2: this build has no CUDA kernels; "), error
    assert 'pip install "krait-ssm[cuda]"' in error[0] and error[1].startswith("cuda: this build has no CUDA kernels")


def test_other_version(tmp_path: Path) -> None:
    path = install(tmp_path, "device_other_version")
    text = run(
        tmp_path,
        "import krait\n"
        "try:\n    krait.Context(device='cuda')\n"
        "except krait.UnsupportedError as error:\n    print(error)\n"
        "print(krait.devices()[-1])\n"
        "print(krait.Context(device='cpu').device)",
    ).splitlines()
    why = f"{path}: it is a plug-in for krait 0.2.9-00000000, but this library is krait "
    assert text[0].startswith(f"device.load: {why}") and "install the same version of both" in text[0], text
    assert text[1].startswith(f"cuda: device.load: {why}") and text[2] == "cpu", text


def test_variable_comes_first(tmp_path: Path) -> None:
    install(tmp_path, "device_other_version")
    device = "import krait; print(krait.Context(device='cuda').device)"
    assert run(tmp_path, device, KR_CUDA_PLUGIN=str(PLUGINS / "device_cuda.so")) == "mock:0 runs at once"


def test_program(tmp_path: Path) -> None:
    install(tmp_path, "device_cuda")
    done = python(tmp_path, "-m", "krait", "check", "--device", "cuda")
    assert done.returncode == 0 and "mock:0" in done.stdout and ", 0 failed" in done.stdout, done


def test_load_device_errors() -> None:
    code = "from krait import _core; _core.load_device({!r})"
    for value, error in (
        ("", "ArgumentError: device.load: path is empty"),
        ("/no/such.so", "IoError: device.load: /no/such.so: "),
        (str(PLUGINS / "plugin_good.so"), "FormatError: device.load: .*no function krait_device"),
        (7, "TypeError: path is of type int, but must be a str"),
    ):
        done = python(None, "-c", code.format(value))
        last = done.stderr.strip().splitlines()[-1]
        parts = error.split(".*")
        assert done.returncode == 1 and all(part in last for part in parts), (last, error)
