"""Random operands of the official functions and comparison with gradients, for the tests of krait.compat."""

from __future__ import annotations

import torch

# f64: the kernels and the references sum in other orders, over at most some hundred terms of size 1; 1e-10 leaves a
# factor of about 1e3 above the rounding 2e-16 * 300 * growth. f32: the same factor above 6e-8 * 300.
TOLERANCE = {torch.float64: 1e-10, torch.float32: 2e-5}


class Random:
    """Reproducible tensors; every failure prints the seed."""

    def __init__(self, seed: int, dtype: torch.dtype = torch.float64) -> None:
        self.seed, self.dtype = seed, dtype
        self.generator = torch.Generator().manual_seed(seed)

    def __call__(self, *shape: int, scale: float = 1.0, shift: float = 0.0) -> torch.Tensor:
        return (torch.randn(*shape, generator=self.generator, dtype=torch.float64) * scale + shift).to(self.dtype)

    def negative(self, *shape: int) -> torch.Tensor:
        """As A: between -2.1 and -0.1."""
        return -(0.1 + 2.0 * torch.rand(*shape, generator=self.generator, dtype=torch.float64)).to(self.dtype)


def assert_close(found, wanted, what: str, seed: int, tolerance: float | None = None) -> None:
    """max|found - wanted| <= tolerance max|wanted|; prints the worst element."""
    assert found is not None, f"{what}: missing (seed {seed})"
    assert tuple(found.shape) == tuple(
        wanted.shape
    ), f"{what}: shape {list(found.shape)}, not {list(wanted.shape)} (seed {seed})"
    if not wanted.numel():
        return
    tolerance = tolerance if tolerance is not None else TOLERANCE[wanted.dtype]
    found, wanted = found.detach().cpu().double(), wanted.detach().cpu().double()
    error = (found - wanted).abs()
    worst = int(error.argmax())
    limit = tolerance * max(float(wanted.abs().max()), 1e-30)
    assert not torch.isnan(found).any() and float(error.max()) <= limit, (
        f"{what}: element {worst} is {found.flatten()[worst].item()!r}, not {wanted.flatten()[worst].item()!r}; "
        f"limit {limit:.3g}, seed {seed}")


def compare(function, reference, operands: dict, seed: int, tolerance: float | None = None) -> None:
    """Results of both and gradients with respect to all floating operands, under the same random weights."""

    def run(f):
        given = {name: m.detach().clone().requires_grad_() if torch.is_tensor(m) and m.is_floating_point() else m
                 for name, m in operands.items()}
        results = f(**given)
        results = [r for r in (results if isinstance(results, tuple) else (results,)) if r is not None]
        random = Random(seed + 1)
        loss = sum((r.double() * random(*r.shape)).sum() for r in results if r.requires_grad)
        leaves = {name: m for name, m in given.items() if torch.is_tensor(m) and m.requires_grad}
        grads = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
        return results, dict(zip(leaves, grads))

    found, wanted = run(function), run(reference)
    assert len(found[0]) == len(wanted[0]), f"{len(found[0])} results, not {len(wanted[0])}"
    for i, (a, b) in enumerate(zip(found[0], wanted[0])):
        assert_close(a, b, f"result {i}", seed, tolerance)
    for name, gradient in wanted[1].items():
        if gradient is not None:
            assert_close(found[1][name], gradient, f"gradient of {name}", seed, tolerance)
