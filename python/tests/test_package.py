"""What an import does, contexts, and the names of the package."""

from __future__ import annotations

import subprocess
import sys

import pytest

import krait


def run_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_is_light() -> None:
    # NumPy and nothing heavy; no thread is started and no device opened.
    out = run_python(
        "import sys, threading, os\n"
        "import numpy\n"
        "import krait\n"
        "heavy = {'torch', 'transformers', 'IPython', 'matplotlib', 'tempfile', 'ml_dtypes', 'logging', 'asyncio'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
        "print(len(os.listdir('/proc/self/task')) - int(os.environ.get('OPENBLAS_THREADS_OF_NUMPY', 0)))\n"
        "before = len(os.listdir('/proc/self/task'))\n"
        "import importlib; importlib.reload(krait)\n"
        "print(len(os.listdir('/proc/self/task')) - before, len(krait._contexts._contexts))\n"
    )
    first, _, last = out.splitlines()
    assert first == "[]"
    assert last == "0 0"


def test_import_starts_no_thread() -> None:
    count = "len(__import__('os').listdir('/proc/self/task'))"
    with_numpy, with_krait = run_python(f"import numpy; print({count}); import krait; print({count})").split()
    assert with_numpy == with_krait


def test_version_is_that_of_the_library() -> None:
    assert krait.__version__.count(".") == 2
    assert run_python("import krait; print(krait.__version__)").strip() == krait.__version__


def test_devices_begin_with_the_cpu() -> None:
    assert krait.devices()[0] == "cpu"


def test_all_names_exist() -> None:
    for name in krait.__all__:
        assert getattr(krait, name) is not None
        assert name == "__version__" or getattr(krait, name).__doc__, f"{name} has no documentation"


def test_context_options() -> None:
    lines: list[tuple[int, str]] = []
    context = krait.Context(threads=3, isa="ref", seed=4, log=lambda level, text: lines.append((level, text)))
    assert (context.threads, context.isa, context.device, context.precision) == (3, "ref", "cpu", "exact")
    assert any("krait" in text for _, text in lines)
    assert context.kernel("ssd") == "ref" and context.kernel("nonsense") is None
    assert set(context.memory()) == {"host", "device", "pinned"}
    context.wait()


def test_context_refuses_positional_and_unknown_arguments() -> None:
    with pytest.raises(TypeError):
        krait.Context("cpu")  # type: ignore[call-arg, misc]
    with pytest.raises(TypeError):
        krait.Context(colour="red")  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="threads is -1"):
        krait.Context(threads=-1)


def test_an_exception_in_the_log_is_raised() -> None:
    def log(level: int, text: str) -> None:
        raise KeyError("log")

    with pytest.raises(KeyError, match="log"):
        krait.Context(threads=1, log=log)


def test_holding_a_context_nests() -> None:
    context = krait.Context(threads=1)
    with context:
        with context:
            context.seed(1)
    with pytest.raises(RuntimeError, match="does not hold"):
        context.__exit__(None, None, None)


def test_default_contexts_are_shared() -> None:
    fields = dict(d_model=16, n_layers=1, vocab_size=256, per_head_dim=8)
    a, b = krait.new("mamba2", threads=1, **fields), krait.new("mamba2", threads=1, **fields)
    assert a.context is b.context
    own = krait.Context(threads=1)
    assert krait.new("mamba2", context=own, **fields).context is own
    with pytest.raises(TypeError, match="belong to the context"):
        krait.new("mamba2", context=own, threads=2, **fields)
