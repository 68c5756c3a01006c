"""transformers over Krait's functions.

Version 5.15 and newer look for the official functions when a model file is imported and use them on any device: install() is
enough, and connect_imported() serves model files that were imported before it. Older versions have two paths in each mixer,
`cuda_kernels_forward` and one without kernels, and take the first only on a GPU. patch() replaces the second by the
first, over Krait's functions instead of the official ones.

The two paths differ in a few places; the replacement then follows the path without kernels, which is what a CPU computes:
  * in training the fast path calls one fused function, which ignores the padding mask after the convolution and norms by
  groups.
    The replacement takes the branch for inference, whose ops have gradients as well.
  * the fast path has no limits of dt in single steps, or other ones.
  * Jamba's fast path drops the gradient of dt_proj.bias.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import sys
import threading
from contextlib import nullcontext
from types import FunctionType, ModuleType

import torch

_FAMILIES = (
    "bamba",
    "falcon_h1",
    "falcon_mamba",
    "granitemoehybrid",
    "jamba",
    "lfm2",
    "lfm2_moe",
    "mamba",
    "mamba2",
    "nemotron_h",
    "zamba",
    "zamba2",
)
_SLOW_NAMES = ("torch_forward", "slow_forward")
_ORIGINAL = "__krait_original__"

_step = threading.local()  # .dt_limit: of the layer whose forward runs


def _functions() -> dict:
    """The functions that model files use, by their names there."""
    from krait._compat import causal_conv, selective_scan, ssd_combined

    return {
        "causal_conv1d_fn": causal_conv.causal_conv1d_fn,
        "causal_conv1d_update": causal_conv.causal_conv1d_update,
        "mamba_chunk_scan_combined": ssd_combined.mamba_chunk_scan_combined,
        "mamba_split_conv1d_scan_combined": ssd_combined.mamba_split_conv1d_scan_combined,
        "mamba_inner_fn": selective_scan.mamba_inner_fn,
        "falcon_mamba_inner_fn": selective_scan.mamba_inner_fn,
        "selective_scan_fn": selective_scan.selective_scan_fn,
        "selective_state_update": _limited_step,
    }


def _limited_step(*args, **kwargs):
    from krait._compat.state_update import limited_state_update

    return limited_state_update(*args, dt_limit=_step.dt_limit, **kwargs)


# ---- new versions ----


def _wrapped_functions(module):
    """The functions of a model file that were decorated with use_kernel_func_from_hub_with_fallback: name, cells of the
    wrapper."""
    for value in vars(module).values():
        while inspect.isfunction(value):
            if value.__closure__ and {"implementation", "is_new_implementation", "func_name"} <= set(
                value.__code__.co_freevars
            ):
                yield dict(zip(value.__code__.co_freevars, value.__closure__))
                break
            value = getattr(value, "__wrapped__", None)


def connect_imported(packages) -> None:
    """Model files that were imported before install() and found no package: gives them the functions of ours."""
    for name, module in list(sys.modules.items()):
        if not name.startswith("transformers.models.") or ".modeling_" not in name:
            continue
        for cells in _wrapped_functions(module):
            package, wanted = cells["package"].cell_contents, cells["func_name"].cell_contents
            if cells["is_new_implementation"].cell_contents or package not in packages:
                continue
            found = _find(package, wanted)
            if found is not None:
                cells["implementation"].cell_contents = found
                cells["applicable_params"].cell_contents = tuple(inspect.signature(found).parameters)
                cells["is_new_implementation"].cell_contents = True


def _find(package, name):
    """The function of that name in any of our modules of a package."""
    for module in [package] + sorted(m for m in sys.modules if m.startswith(package + ".")):
        found = vars(sys.modules[module]).get(name)
        if found is not None:
            return found
    return None


# ---- old versions ----


class _CpuTorch(ModuleType):
    """torch, except that torch.cuda.device is a context without effect: Falcon-H1 enters it."""

    def __init__(self):
        super().__init__("torch")
        self.cuda = type("cuda", (), {"device": staticmethod(lambda device: nullcontext())})

    def __getattr__(self, name):
        return getattr(torch, name)


class _Bias:
    """The bias of a linear layer whose `data` is the parameter itself, so that it gets a gradient; assignments are
    ignored."""

    def __init__(self, parameter):
        object.__setattr__(self, "data", parameter)

    def __setattr__(self, name, value):
        pass


class _UnbiasedLinear:
    """A linear layer without its bias, which Jamba sets to 0 around the call."""

    def __init__(self, linear):
        self._linear, self.bias, self.weight = linear, _Bias(linear.bias), linear.weight

    def __call__(self, x):
        if type(self._linear) is torch.nn.Linear:
            return torch.nn.functional.linear(x, self._linear.weight)
        return self._linear(x) - self._linear.bias


class _Inference:
    """A mixer as its fast forward sees it: not in training."""

    training = False

    def __init__(self, mixer):
        self._mixer = mixer

    def __getattr__(self, name):
        return getattr(self._mixer, name)


class _JambaInference(_Inference):
    def __init__(self, mixer):
        super().__init__(mixer)
        self.dt_proj = _UnbiasedLinear(mixer.dt_proj)


class _LimitedInference(_Inference):
    """Of mixers whose slow forward has the lower limit time_step_min instead of time_step_limit."""

    def __init__(self, mixer):
        super().__init__(mixer)
        self.time_step_limit = (mixer.time_step_min, float("inf"))


def _rebound(function, module):
    """A copy of a function of a model file that finds Krait's functions under the global names of the official ones."""
    function = inspect.unwrap(function)
    home = ModuleType(f"krait._compat.of_{module.__name__.rpartition('.')[2]}")
    home.__dict__.update(vars(module))
    functions = _functions()
    home.__dict__.update(functions, __name__=home.__name__, is_fast_path_available=True, torch=_CpuTorch(),
                         _lazy_load_causal_conv1d=lambda: (functions["causal_conv1d_update"], functions["causal_conv1d_fn"]))
    copy = FunctionType(function.__code__, home.__dict__, function.__name__, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def _view_class(mixer_class, slow):
    if mixer_class.__name__.startswith("Jamba"):
        return _JambaInference
    return _LimitedInference if "time_step_min" in inspect.unwrap(slow).__code__.co_names else _Inference


def _continues(mixer, cache, cache_position) -> bool:
    """Whether the cache holds states of earlier tokens, as each version says it."""
    if cache is None:
        return False
    if hasattr(cache, "seqlen_offset"):
        return cache.seqlen_offset > 0
    previous = getattr(cache, "has_previous_state", None)
    if previous is not None:
        return bool(previous(mixer.layer_idx) if callable(previous) else previous)
    return cache_position is not None and bool(cache_position[0] > 0)


def _is_served(mixer, states) -> bool:
    """Whether the fast forward can run: on the CPU, not traced, and with an activation that the convolution has."""
    return states.device.type == "cpu" and not torch.compiler.is_compiling() and getattr(mixer, "activation", "silu") in (
        "silu", "swish")


def _replacement(mixer_class, slow, module):
    fast = _rebound(mixer_class.cuda_kernels_forward, module)
    view_class = _view_class(mixer_class, slow)
    names = list(inspect.signature(slow).parameters)[1:]
    fast_names = list(inspect.signature(fast).parameters)[1:]

    @functools.wraps(slow)
    def forward(self, *args, **kwargs):
        given = dict(zip(names, args)) | kwargs
        states = given.pop(names[0])
        cache = given.get("cache_params", given.get("past_key_values"))
        # Several tokens after earlier ones: few versions of the fast path can do that.
        if not _is_served(self, states) or (states.shape[1] > 1 and _continues(self, cache, given.get("cache_position"))):
            return slow(self, *args, **kwargs)
        view = view_class(self)
        limit = getattr(view, "time_step_limit", None)
        _step.dt_limit = (0.0, float("inf")) if limit is None else tuple(limit)
        return fast(view, states, **{name: value for name, value in given.items() if name in fast_names})

    setattr(forward, _ORIGINAL, slow)
    return forward


def _patch_class(mixer_class, module) -> bool:
    """Patches a mixer class that has both paths. Whether it did."""
    name = next((n for n in _SLOW_NAMES if n in vars(mixer_class)), None)
    if name is None or "cuda_kernels_forward" not in vars(mixer_class) or hasattr(vars(mixer_class)[name], _ORIGINAL):
        return False
    setattr(mixer_class, name, _replacement(mixer_class, vars(mixer_class)[name], module))
    return True


def patch() -> list[str]:
    """Patches the mixers of all families of the installed transformers; the names of the classes that it patched."""
    if importlib.util.find_spec("transformers") is None:
        return []
    patched = []
    for family in _FAMILIES:
        name = f"transformers.models.{family}.modeling_{family}"
        if importlib.util.find_spec(f"transformers.models.{family}") is None or importlib.util.find_spec(name) is None:
            continue
        module = importlib.import_module(name)
        for value in list(vars(module).values()):
            if inspect.isclass(value) and value.__module__ == name and _patch_class(value, module):
                patched.append(value.__name__)
    return patched
