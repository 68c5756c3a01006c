"""Steps of one token: krait::ssd_step, scan_step, conv_step and mamba3_step. They update their state in place.

There is no gradient: a step that autograd would record is refused, since the state before it is gone. A state of a 16-bit
type is widened for the step and rounded as it is stored.
"""

from __future__ import annotations

from typing import Any, Callable

import torch

from krait import _core
from krait.torch import kernels
from krait.torch.kernels import OptionalTensor
from krait.torch.mixers import MAMBA3_MIXER
from krait.torch.ops import LIBRARY, NAMESPACE

_RAW = _core.raw_ops
_STEP = 32
Tensor = torch.Tensor


class _State:
    """A state in the computing type, contiguous; `store` writes it back where that is other memory."""

    def __init__(self, given: Tensor, dtype: torch.dtype) -> None:
        self.given = given
        read = kernels.as_read(given, dtype, takes_any_type=True)
        assert read is not None
        self.x = read

    def store(self) -> None:
        if self.x is not self.given:
            self.given.copy_(self.x)


def _read(dtype: torch.dtype, *operands: OptionalTensor) -> list[OptionalTensor]:
    """Parameters and other operands that have no strides of their own."""
    return [kernels.as_read(x, dtype, takes_any_type=True) for x in operands]


def _rows(dtype: torch.dtype, *operands: OptionalTensor) -> list[OptionalTensor]:
    """Operands [b ..] whose rows may be apart."""
    return [kernels.as_read(x, dtype, 1, takes_any_type=True) for x in operands]


def _ssd_step(state: Tensor, x: Tensor, da: Tensor, w: Tensor, b: Tensor, c: Tensor, d: OptionalTensor) -> Tensor:
    dtype = kernels.compute_dtype(x)
    own = _State(state, dtype)
    y = torch.empty(x.shape, dtype=dtype, device=x.device)
    kernels.run(_RAW["ssd"], (*_rows(dtype, x, b, c), *_read(dtype, da, w), None, *_read(dtype, d), own.x, None, None, None,
                              None, y, own.x), None, _STEP)
    own.store()
    return y.to(x.dtype)


def _scan_step(state: Tensor, x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, d: OptionalTensor,
               z: OptionalTensor) -> Tensor:
    dtype = kernels.compute_dtype(x)
    own = _State(state, dtype)
    y = torch.empty(x.shape, dtype=dtype, device=x.device)
    kernels.run(_RAW["scan"], (*_rows(dtype, x, dt), *_read(dtype, a), *_rows(dtype, b, c), *_read(dtype, d),
                               *_rows(dtype, z), own.x, y, own.x), None, _STEP)
    own.store()
    return y.to(x.dtype)


def _conv_step(window: Tensor, x: Tensor, weight: Tensor, bias: OptionalTensor, silu: bool) -> Tensor:
    dtype = kernels.compute_dtype(x)
    own = _State(window, dtype)
    y = torch.empty(x.shape, dtype=dtype, device=x.device)
    kernels.run(_RAW["conv"], (*_rows(dtype, x), *_read(dtype, weight, bias), own.x, y, own.x), None,
                _STEP | (kernels.SILU if silu else 0))
    own.store()
    return y.to(x.dtype)


_MAMBA3_OPERANDS = MAMBA3_MIXER.operands[:-4]


def _mamba3_step(angle: Tensor, ssm: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Tensor:
    """rest: operands of the mixer before the states, tokens being [b f], and its options."""
    count = len(_MAMBA3_OPERANDS)
    tokens, operands, options = rest[0], rest[1:count], rest[count:]
    result = MAMBA3_MIXER.forward(tokens.unsqueeze(1), *operands, angle, ssm, k, v, None, *options)
    for state, new in zip((angle, ssm, k, v), result[1:5]):
        state.copy_(new)
    y: Tensor = result[0]
    return y.squeeze(1)


def _refuses_gradients(name: str, op: Any) -> Callable[..., Any]:
    def kernel(keyset: Any, *args: Any) -> Any:
        if torch.is_grad_enabled() and any(isinstance(x, torch.Tensor) and x.requires_grad for x in args):
            raise RuntimeError(f"krait::{name} has no gradient, since it overwrites its state; call it under torch.no_grad(), "
                               "or the op for sequences with one token")
        with torch._C._AutoDispatchBelowAutograd():
            return op(*args)

    return kernel


def _define(name: str, states: str, rest: str, kernel: Callable[..., Tensor], fake: Callable[..., Tensor]) -> None:
    marked = ", ".join(f"Tensor({chr(97 + i)}!) {state}" for i, state in enumerate(states.split()))
    LIBRARY.define(f"{name}({marked}, {rest}) -> Tensor", tags=(torch.Tag.pt2_compliant_tag,))
    for device in ("CPU", "CUDA"):
        LIBRARY.impl(name, kernel, device)
    torch.library.register_fake(f"krait::{name}", fake, lib=LIBRARY)
    LIBRARY.impl(name, _refuses_gradients(name, getattr(NAMESPACE, name).default), "Autograd", with_keyset=True)


def _like_second(state: Tensor, x: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _fake_mamba3(angle: Tensor, ssm: Tensor, k: Tensor, v: Tensor, tokens: Tensor, *_: Any) -> Tensor:
    return tokens.new_empty(v.shape[0], v.shape[1] * v.shape[2])


_define("ssd_step", "state", "Tensor x, Tensor da, Tensor w, Tensor b, Tensor c, Tensor? d", _ssd_step, _like_second)
_define("scan_step", "state", "Tensor x, Tensor dt, Tensor a, Tensor b, Tensor c, Tensor? d, Tensor? z", _scan_step,
        _like_second)
_define("conv_step", "window", "Tensor x, Tensor weight, Tensor? bias, bool silu", _conv_step, _like_second)
_define("mamba3_step", "angle ssm k v",
        ", ".join(f"Tensor{'?' if axis.optional else ''} {axis.name}" for axis in _MAMBA3_OPERANDS) + ", " + MAMBA3_MIXER.options,
        _mamba3_step, _fake_mamba3)
