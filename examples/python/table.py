"""Predicts the class of each position of a sequence of numbers, from arrays. Run it: python table.py"""

import numpy as np

import krait

rng = np.random.default_rng(1)
bits = rng.integers(0, 2, (200, 32))
delayed = np.pad(bits, ((0, 0), (3, 0)))[:, :32]  # the bit of three positions ago: the model has to remember it
source = krait.data.arrays(
    np.stack([bits.ravel(), 1 - bits.ravel()], axis=1), labels=delayed.ravel(), starts=np.arange(0, bits.size, 32)
)
run = krait.train(
    source, family="mamba3", d_model=32, layers=1, d_state=16, head_dim=16, steps=300, batch=16, length=32, lr=2e-2,
    progress=False,
)  # fmt: skip
print(f"accuracy {run.metrics['accuracy'][:5].mean():.2f} -> {run.metrics['accuracy'][-5:].mean():.2f}")
