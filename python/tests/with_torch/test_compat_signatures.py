"""The official names: each exists in the module of that name with exactly the recorded parameters, their order and defaults.

official_signatures.json was recorded from mamba_ssm 2.3.2 and causal_conv1d 1.6.1: [name] or [name, default as source text].
"""

from __future__ import annotations

import importlib
import inspect
import json
import pathlib

import pytest

torch = pytest.importorskip("torch")

import krait.compat  # noqa: E402

TABLE = json.loads((pathlib.Path(__file__).parent / "official_signatures.json").read_text())
# Attention layers are refused with a sentence (docs/python-compat.md), so their module is absent.
ABSENT = {("mamba_ssm.modules.mha", "MHA")}
FUNCTIONS = [
    (module, name, None) for module, names in TABLE.items() for name, value in names.items() if isinstance(value, list)
]
METHODS = [
    (module, name, method)
    for module, names in TABLE.items()
    for name, value in names.items()
    if isinstance(value, dict)
    for method in value
]


@pytest.fixture(scope="module", autouse=True)
def installed():
    krait.compat.install()
    yield
    krait.compat.uninstall()


def _default(text):
    return eval(text, {"float": float, "F": torch.nn.functional, "nn": torch.nn, "torch": torch, "list": list, "dict": dict})


def _check(function, recorded, where, drop_self):
    parameters = list(inspect.signature(function).parameters.values())[1 if drop_self else 0:]
    parameters = [p for p in parameters if p.kind != p.KEYWORD_ONLY]  # ours may take more, by keyword only
    extra = parameters[len(recorded):]
    for p in extra:
        assert p.kind == p.VAR_KEYWORD, f"{where}: has the further parameter {p.name}"
    for p, (name, *default) in zip(parameters, recorded):
        kind = {p.VAR_POSITIONAL: "*", p.VAR_KEYWORD: "**"}.get(p.kind, "")
        assert kind + p.name == name, f"{where}: parameter {kind + p.name}, officially {name}"
        if kind:
            continue
        assert (p.default is p.empty) == (not default), f"{where}: default of {name}"
        if default:
            wanted = _default(default[0])
            found = p.default
            if wanted in ([], {}) and repr(found) == "<factory>":  # of a dataclass
                found = wanted
            assert found == wanted or (found is wanted), f"{where}: {name} = {found!r}, officially {default[0]}"
    assert len(parameters) >= len(recorded), f"{where}: lacks {recorded[len(parameters):]}"


@pytest.mark.parametrize("module,name,method", [c for c in FUNCTIONS if c[:2] not in ABSENT])
def test_function(module, name, method):
    _check(getattr(importlib.import_module(module), name), TABLE[module][name], f"{module}.{name}", False)


@pytest.mark.parametrize("module,name,method", [c for c in METHODS if c[:2] not in ABSENT])
def test_method(module, name, method):
    recorded = TABLE[module][name][method]
    found = inspect.getattr_static(getattr(importlib.import_module(module), name), method)
    drop_self = not isinstance(found, (staticmethod,))
    found = found.__func__ if isinstance(found, (classmethod, staticmethod)) else found
    _check(found, recorded, f"{module}.{name}.{method}", drop_self)


@pytest.mark.parametrize("name", [
    "Mamba", "Mamba2", "Mamba3", "MambaLMHeadModel", "selective_scan_fn", "mamba_inner_fn", "selective_state_update",
    "mamba_chunk_scan_combined", "mamba_split_conv1d_scan_combined", "__version__"])
def test_top_level_name(name):
    assert hasattr(importlib.import_module("mamba_ssm"), name)


def test_the_table_can_fail():
    """A changed default, another order and a missing parameter are found."""
    recorded = [["a"], ["b", "1"]]
    _check(lambda a, b=1: None, recorded, "same", False)
    for other in (lambda a, b=2: None, lambda b, a=1: None, lambda a: None, lambda a, b: None, lambda a, b=1, c=2: None):
        with pytest.raises(AssertionError):
            _check(other, recorded, "other", False)
