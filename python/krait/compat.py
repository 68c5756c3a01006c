"""The names of mamba_ssm, causal_conv1d and selective_scan_cuda over Krait's ops, and transformers with them.

    import krait.compat
    krait.compat.install()                              # before `import mamba_ssm` and before models of transformers
    from mamba_ssm import Mamba, Mamba2                 # Krait's modules, with the official arguments and parameter names

`python -m krait.compat script.py [ARGUMENT...]` does the same for a program that is not to be changed. docs/python-compat.md
lists the names, what differs, and which versions of transformers need patch_transformers().
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import runpy
import sys
from types import ModuleType
from typing import Any, Sequence

__all__ = ["install", "main", "patch_transformers", "uninstall", "use_linear"]

_MARK = "__krait_compat__"


def _is_ours(name: str) -> bool:
    return hasattr(sys.modules.get(name), _MARK)


def _is_real(package: str) -> bool:
    """Whether another package of that name is imported or could be."""
    if package in sys.modules:
        return not _is_ours(package)
    try:
        return importlib.util.find_spec(package) is not None
    except (ImportError, ValueError):
        return False


def _make(name: str, contents: dict[str, Any], packages: set[str]) -> ModuleType:
    module = ModuleType(name, f"{name} over Krait: krait.compat made this module; it has no file.")
    module.__spec__ = importlib.machinery.ModuleSpec(name, None, origin="krait.compat", is_package=name in packages)
    if name in packages:
        module.__path__ = []
        module.__package__ = name
    else:
        module.__package__ = name.rpartition(".")[0]
    setattr(module, _MARK, True)
    module.__dict__.update(contents)
    return module


def install(force: bool = False) -> list[str]:
    """Puts modules of the official names into sys.modules, and returns the names of the top-level ones that it put there.

    A package that is installed keeps its place, unless force is set. Programs that import those names afterwards get Krait's
    functions, and so do the models of transformers 5.15 and newer, imported before or after. Older ones also need
    patch_transformers(). Calling it again changes nothing.

    >>> import krait.compat
    >>> _ = krait.compat.install()
    >>> from mamba_ssm.ops.triton.ssd_combined import mamba_chunk_scan_combined
    """
    from krait._compat import names, transformers_patch

    placed = []
    for package, modules in names.packages().items():
        if _is_ours(package):
            placed.append(package)
            continue
        if _is_real(package) and not force:
            continue
        for name in [m for m in sys.modules if m == package or m.startswith(package + ".")]:
            del sys.modules[name]
        with_children = {m.rpartition(".")[0] for m in modules} | {package}
        for name, contents in modules.items():
            sys.modules[name] = _make(name, contents, with_children)
            parent, _, child = name.rpartition(".")
            if parent:
                setattr(sys.modules[parent], child, sys.modules[name])
        placed.append(package)
    transformers_patch.connect_imported(placed)
    return placed


def uninstall() -> None:
    """Takes the modules of install() out of sys.modules. Programs that imported from them keep what they have."""
    for name in [m for m in sys.modules if _is_ours(m)]:
        del sys.modules[name]


def patch_transformers() -> list[str]:
    """Makes the Mamba layers of transformers 4.46 to 5.14 use Krait on the CPU; returns the names of the patched classes.

    Those versions have a fast path that also asks for a GPU. Here the path without kernels (`slow_forward`,
    `torch_forward`) of every such class is replaced by the fast one over Krait's functions, with the same states in the
    same cache. Newer versions need install() alone; for them, and where transformers is not installed, the list is
    empty. Calling it again changes nothing.
    """
    from krait._compat import transformers_patch

    return transformers_patch.patch()


def use_linear(model: Any) -> int:
    """Makes the linear layers of a model use the library's products on the CPU; returns how many it changed.

    They stay torch.nn.Linear with the same parameters: the class becomes krait.torch.modules.Linear, which calls torch's own
    product for GPUs, 16-bit types and autocast. Only layers that are exactly torch.nn.Linear are changed, not those of a
    quantised model or of PEFT. Results differ by rounding. It pays off where torch's products are slow: measure.

    >>> import torch, krait.compat
    >>> krait.compat.use_linear(torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)))
    2
    """
    import torch

    from krait.torch.modules import Linear

    layers = [layer for layer in model.modules() if type(layer) is torch.nn.Linear]
    for layer in layers:
        layer.__class__ = Linear
    return len(layers)


def main(arguments: Sequence[str] | None = None) -> int:
    """python -m krait.compat SCRIPT [ARGUMENT...], or -m MODULE [ARGUMENT...]: installs the names and runs the program."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    usage = "usage: python -m krait.compat SCRIPT [ARGUMENT...]\n       python -m krait.compat -m MODULE [ARGUMENT...]"
    as_module = arguments[:1] == ["-m"]
    program = arguments[1:] if as_module else arguments
    if not program or program[0].startswith("-"):
        print(usage, file=sys.stderr)
        return 2
    install()
    if importlib.util.find_spec("transformers") is not None:
        patch_transformers()
    sys.argv = list(program)
    if as_module:
        runpy.run_module(program[0], run_name="__main__", alter_sys=True)
    else:
        import os

        sys.path[0] = os.path.dirname(os.path.abspath(program[0]))
        runpy.run_path(program[0], run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main())
