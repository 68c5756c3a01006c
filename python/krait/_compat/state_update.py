"""mamba_ssm.ops.triton.selective_state_update: one token."""

from __future__ import annotations

import torch

from krait._compat.ssd_combined import clamped_steps
from krait._compat import calls as K

_NO_LIMIT = (0.0, float("inf"))


def _is_tied(A, dt, dt_bias):
    """Whether all channels of a head decay alike, as far as strides say it: A [h p r], dt [b h p] and dt_bias [h p]
    expanded."""
    _, np, nr = A.shape
    _, of_p, of_r = A.stride()
    if (of_p and np != 1) or (of_r and nr != 1) or (dt.stride(2) and np != 1):
        return False
    return dt_bias is None or not dt_bias.stride(1) or np == 1


def _heads(state, x, dt, A, B, C, D, dt_bias, dt_softplus, dt_limit):
    """All channels of a head decay alike: Mamba-2. Updates state [b h p r] in place, returns y [b h p]."""
    wide = state.dtype
    steps = clamped_steps(dt.select(2, 0), None if dt_bias is None else dt_bias.select(1, 0), dt_softplus, dt_limit)
    steps = steps if steps.dtype is wide else steps.to(wide)
    of_head = A.select(2, 0).select(1, 0)
    by_head = None
    if D is not None and (D.stride(1) == 0 or D.shape[1] == 1):
        by_head = D.select(1, 0)
    y = K.ssd_step(state, x, steps * (of_head if of_head.dtype is wide else of_head.to(wide)), steps, B, C, by_head)
    return y if D is None or by_head is not None else y + x * D


def _channels(state, x, dt, A, B, C, D, dt_bias, dt_softplus, dt_limit):
    """Every channel has its own decay: Mamba-1. Heads are groups of channels."""
    nb, nh, np, nr = state.shape
    steps = clamped_steps(dt, dt_bias, dt_softplus, dt_limit)
    y = K.scan_step(state.view(nb, nh * np, nr), x.reshape(nb, -1), steps.reshape(nb, -1), A.reshape(-1, nr), B, C,
                    None if D is None else D.reshape(-1))
    return y.view(nb, nh, np)


def _check(state, x, dt, A, B, C, D, z, dt_bias):
    """The shapes that the kernel would not name as the caller knows them."""
    nb, nh, np = x.shape
    nr, ng = state.shape[-1], B.shape[1]
    if (
        dt.shape == x.shape
        and A.shape == state.shape[1:]
        and B.shape == C.shape == (nb, ng, nr)
        and state.shape[:3] == x.shape
        and (D is None or D.shape == A.shape[:2])
        and (z is None or z.shape == x.shape)
        and (dt_bias is None or dt_bias.shape == A.shape[:2])
        and nh % ng == 0
    ):
        return
    if nh % ng:
        raise ValueError(f"selective_state_update: {nh} heads are no multiple of {ng} groups")
    shapes = {"state": (state, (nb, nh, np, nr)), "dt": (dt, (nb, nh, np)), "A": (A, (nh, np, nr)), "B": (B, (nb, ng, nr)),
              "C": (C, (nb, ng, nr)), "D": (D, (nh, np)), "z": (z, (nb, nh, np)), "dt_bias": (dt_bias, (nh, np))}
    for name, (m, shape) in shapes.items():
        if m is not None and tuple(m.shape) != shape:
            raise ValueError(
                f"selective_state_update: {name} has shape {list(m.shape)}, but with x [b h p] = {list(x.shape)}, "
                f"{nr} states and {ng} groups it must be {list(shape)}"
            )


@torch.no_grad()
def limited_state_update(state, x, dt, A, B, C, D=None, z=None, dt_bias=None, dt_softplus=False, state_batch_indices=None,
                         dt_limit=_NO_LIMIT):
    """selective_state_update with limits of dt after softplus."""
    has_heads = state.dim() == 4
    held = state if state_batch_indices is None else state[state_batch_indices.long()]
    if not has_heads:
        held = held.unsqueeze(1)
        x, dt, A, B, C, D, z, dt_bias = [None if m is None else m.unsqueeze(axis)
                                         for m, axis in zip((x, dt, A, B, C, D, z, dt_bias), (1, 1, 0, 1, 1, 0, 1, 0))]
    _check(held, x, dt, A, B, C, D, z, dt_bias)
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    updated = held if held.dtype == wide and held.is_contiguous() else held.to(wide).contiguous()
    y = (_heads if has_heads and _is_tied(A, dt, dt_bias) else _channels)(
        updated, x, dt, A, B, C, D, dt_bias, dt_softplus, dt_limit
    )
    if z is not None:
        y = y * torch.nn.functional.silu(z)
    if state_batch_indices is not None:
        state[state_batch_indices.long()] = updated.view(-1, *state.shape[1:]).to(state.dtype)
    elif updated is not held:
        held.copy_(updated)
    y = y if y.dtype is x.dtype else y.to(x.dtype)
    return y if has_heads else y.squeeze(1)


def selective_state_update(state, x, dt, A, B, C, D=None, z=None, dt_bias=None, dt_softplus=False, state_batch_indices=None):
    """One token of Mamba-1 or Mamba-2. Writes state. No gradients.

    state [b h p r], of any floating type; x, dt, z [b h p]; A [h p r]; B, C [b g r]; D, dt_bias [h p]; or all of them
    without h and g. Where A, dt and dt_bias are expanded over the channels of a head (stride 0), the step is that of
    Mamba-2. state_batch_indices [b]: the rows of state that belong to the rows of x. Returns y in the shape and type of
    x.
    """
    return limited_state_update(state, x, dt, A, B, C, D, z, dt_bias, dt_softplus, state_batch_indices)
