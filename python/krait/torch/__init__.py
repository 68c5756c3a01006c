"""Krait in PyTorch: ops (torch.ops.krait), functions, modules with the names of the official package, language models.

>>> import torch
>>> from krait.torch import Mamba2
>>> block = Mamba2(d_model=64, d_state=16, headdim=16)
>>> tuple(block(torch.randn(2, 10, 64)).shape)
(2, 10, 64)
"""

from __future__ import annotations

import os
import sys

# Workers of torch's OpenMP runtime spin after each parallel region and take the cores from a kernel that follows. The
# runtime reads this once, when torch is loaded; a value of the user's stays.
if "torch" not in sys.modules:
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from krait.torch import functional, lm, mixers, modules, ops, steps  # noqa: E402
from krait.torch.kernels import OutOfMemoryError, copies, precision  # noqa: E402
from krait.torch.lm import (  # noqa: E402
    Block,
    GatedMLP,
    InferenceParams,
    MambaConfig,
    MambaLMHeadModel,
    from_krait,
    to_krait,
)
from krait.torch.modules import Mamba, Mamba2, Mamba3, RMSNorm  # noqa: E402

__all__ = [
    "Block",
    "GatedMLP",
    "InferenceParams",
    "Mamba",
    "Mamba2",
    "Mamba3",
    "MambaConfig",
    "MambaLMHeadModel",
    "OutOfMemoryError",
    "RMSNorm",
    "copies",
    "from_krait",
    "functional",
    "lm",
    "mixers",
    "modules",
    "ops",
    "precision",
    "steps",
    "to_krait",
]
