"""The program `krait` that is installed with the package."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from ._core import Error, __version__
from ._plugins import find_cuda

__all__ = ["environment", "find_program", "run_program"]


def _candidates() -> list[Path]:
    """Where pip puts programs: the environment's folder, the user's, next to Python; with --target next to the package."""
    root = Path(__file__).resolve().parent.parent
    folders = [sysconfig.get_path("scripts")]
    user = sysconfig.get_preferred_scheme("user")
    folders += [sysconfig.get_path("scripts", user), os.path.dirname(sys.executable)]
    is_installed = any(root == Path(sysconfig.get_path(name)).resolve() for name in ("platlib", "purelib"))
    folders.insert(len(folders) if is_installed else 0, str(root / "bin"))
    return [Path(folder) / "krait" for folder in folders]


def find_program() -> Path:
    """The path of the program. FileNotFoundError if the package was installed without it."""
    for path in _candidates():
        if path.is_file() and os.access(path, os.X_OK):
            return path
    found = shutil.which("krait")
    if found is None:
        places = ", ".join(str(path.parent) for path in _candidates())
        raise FileNotFoundError(f"the program krait is not found in {places} or on PATH")
    return Path(found)


def environment() -> dict[str, str]:
    """The environment for the program: with the CUDA plug-in of krait-ssm-cuda13, if that is installed."""
    variables = dict(os.environ)
    plugin = find_cuda()
    if plugin is not None and not variables.get("KR_CUDA_PLUGIN"):
        variables["KR_CUDA_PLUGIN"] = str(plugin)
    return variables


def run_program(*arguments: str) -> str:
    """Runs the program and returns its standard output. Error with what it says if it fails.

    A program found on PATH may be of another version, which is an error: its files may differ.
    """
    program = find_program()
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout.strip()
    if version != f"krait {__version__}":
        raise Error(f"{program} is {version or 'no program of Krait'}, but this package is krait {__version__}")
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False, env=environment())
    if done.returncode != 0:
        raise Error(done.stderr.strip().removeprefix("krait: ") or f"{program} ended with status {done.returncode}")
    return done.stdout
