"""krait.compat.install(), uninstall() and `python -m krait.compat`, each in a process of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap

import pytest

pytest.importorskip("torch")


def run(code, *arguments, path=()):
    """Runs code in another Python; its output."""
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join([*map(str, path), *filter(None, sys.path)]))
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code), *arguments], capture_output=True, text=True,
                          env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_modules_are_found_like_real_ones():
    run("""
        import importlib, importlib.util, inspect, sys
        import krait.compat
        placed = krait.compat.install()
        assert placed == ["mamba_ssm", "causal_conv1d", "selective_scan_cuda", "selective_scan_cuda_oflex"], placed
        assert krait.compat.install() == placed  # a second call changes nothing
        import mamba_ssm, causal_conv1d, selective_scan_cuda, selective_scan_cuda_oflex
        assert mamba_ssm.__version__ == "2.3.2+krait" and mamba_ssm.__path__ == []
        assert importlib.util.find_spec("mamba_ssm").name == "mamba_ssm"
        assert importlib.util.find_spec("mamba_ssm.ops.triton.ssd_combined") is not None
        from mamba_ssm import Mamba, Mamba2, Mamba3, MambaLMHeadModel, selective_scan_fn, mamba_inner_fn
        from mamba_ssm.ops.selective_scan_interface import selective_scan_ref
        from mamba_ssm.ops.triton.layer_norm import RMSNorm, layer_norm_fn, rms_norm_fn
        from mamba_ssm.ops.triton.layernorm import RMSNorm as old
        from mamba_ssm.ops.triton.layernorm_gated import RMSNorm as gated
        from mamba_ssm.modules.block import Block
        from mamba_ssm.modules.mlp import GatedMLP
        from mamba_ssm.models.config_mamba import MambaConfig
        from mamba_ssm.utils.generation import InferenceParams
        from causal_conv1d import causal_conv1d_fn, causal_conv1d_update
        from causal_conv1d.causal_conv1d_varlen import causal_conv1d_varlen_states
        assert old is RMSNorm and gated is not RMSNorm
        assert mamba_ssm.ops.triton.ssd_combined is importlib.import_module("mamba_ssm.ops.triton.ssd_combined")
        assert inspect.getmodule(mamba_ssm.ops) is mamba_ssm.ops
        try:
            import mamba_ssm.modules.mha
        except ModuleNotFoundError as error:
            assert "mamba_ssm.modules.mha" in str(error)
        else:
            raise AssertionError("mha")
        krait.compat.uninstall()
        assert importlib.util.find_spec("mamba_ssm") is None and "mamba_ssm.ops" not in sys.modules
    """)


@pytest.mark.parametrize("imported", [False, True])
def test_a_real_package_keeps_its_place(tmp_path, imported):
    (tmp_path / "causal_conv1d.py").write_text("real = True\n")
    run("""
        import sys
        import krait.compat
        if sys.argv[1] == "True":
            import causal_conv1d
        placed = krait.compat.install()
        assert "causal_conv1d" not in placed and "mamba_ssm" in placed, placed
        import causal_conv1d
        assert causal_conv1d.real
        assert "causal_conv1d" in krait.compat.install(force=True)
        import causal_conv1d
        assert not hasattr(causal_conv1d, "real") and callable(causal_conv1d.causal_conv1d_fn)
    """, str(imported), path=[tmp_path])


def test_importing_compat_is_light():
    """torch is imported by install(), not before: a program may still choose its settings."""
    run("""
        import sys
        import krait.compat
        assert "torch" not in sys.modules and "mamba_ssm" not in sys.modules
    """)


def test_examples():
    run("""
        import doctest
        import krait.compat
        failed, tried = doctest.testmod(krait.compat)
        assert tried >= 5 and failed == 0, (tried, failed)
    """)


def test_annotations(tmp_path):
    """compat.py and hf.py; the functions with official signatures have none."""
    pytest.importorskip("mypy")
    pytest.importorskip("transformers")
    import krait

    # Away from site-packages, where modules of other packages would shadow those that mypy has.
    shutil.copytree(os.path.dirname(krait.__file__), tmp_path / "krait", ignore=shutil.ignore_patterns("__pycache__"))
    options = ["--strict", "--allow-untyped-calls", "--no-warn-return-any", "--follow-imports=silent"]
    files = [os.path.join("krait", name) for name in ("compat.py", "hf.py")]
    done = subprocess.run([sys.executable, "-m", "mypy", *options, *files], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout


SCRIPT = """
import sys
import torch
from mamba_ssm import Mamba
from helper_of_the_script import name

assert __name__ == "__main__"
torch.manual_seed(0)
model = Mamba(d_model=16, d_state=8, d_conv=4, expand=2)
x = torch.randn(2, 12, 16)
y = model(x)
y.square().mean().backward()
print(name, sys.argv[1:], tuple(y.shape), all(p.grad is not None for p in model.parameters()))
"""


def _program(tmp_path, *arguments, cwd=None):
    (tmp_path / "train_it.py").write_text(SCRIPT)
    (tmp_path / "helper_of_the_script.py").write_text("name = 'helper'\n")
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, sys.path)))
    return subprocess.run(
        [sys.executable, "-m", "krait.compat", *arguments],
        capture_output=True,
        text=True,
        env=environment,
        timeout=300,
        cwd=cwd or tmp_path,
    )


def test_an_unchanged_script_runs(tmp_path):
    """It imports mamba_ssm and a file next to it, sees its own arguments, and trains."""
    wanted = "helper ['--steps', '3'] (2, 12, 16) True\n"
    done = _program(tmp_path, str(tmp_path / "train_it.py"), "--steps", "3", cwd="/")
    assert (done.returncode, done.stdout) == (0, wanted), done.stderr
    done = _program(tmp_path, "-m", "train_it", "--steps", "3")
    assert (done.returncode, done.stdout) == (0, wanted), done.stderr


def test_usage():
    for arguments in ([], ["-m"], ["--what"]):
        environment = dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, sys.path)))
        done = subprocess.run(
            [sys.executable, "-m", "krait.compat", *arguments], capture_output=True, text=True, env=environment, timeout=300
        )
        assert done.returncode == 2 and done.stderr.startswith("usage: python -m krait.compat SCRIPT"), done.stderr


def test_exit_status_of_the_script(tmp_path):
    (tmp_path / "leaves.py").write_text("import sys, mamba_ssm\nsys.exit(7)\n")
    done = _program(tmp_path, str(tmp_path / "leaves.py"))
    assert done.returncode == 7, done.stderr
