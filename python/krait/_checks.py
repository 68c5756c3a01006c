"""krait.check: the self-test of the library as a table."""

from __future__ import annotations

import html
import math
import os
from collections.abc import Iterator
from typing import Any, NamedTuple

from . import _core

__all__ = ["CheckResult", "Checks", "check"]

PathLike = str | os.PathLike[str]


class CheckResult(NamedTuple):
    """One line of a check. outcome: "passed", "failed" or "skipped"; error and limit: the worst relative error and the
    largest that passes, NaN if none was measured; kernel: those whose results are wrong, or None."""

    outcome: str
    check: str
    isa: str | None
    kernel: str | None
    error: float
    limit: float
    text: str | None


class Checks:
    """The results of krait.check: a sequence of CheckResult that prints as a table. False if a check failed."""

    def __init__(self, rows: list[CheckResult]) -> None:
        self._rows = rows

    def _count(self, outcome: str) -> int:
        return sum(row.outcome == outcome for row in self._rows)

    @property
    def passed(self) -> int:
        """Number of checks that passed."""
        return self._count("passed")

    @property
    def failed(self) -> int:
        """Number of checks that failed."""
        return self._count("failed")

    @property
    def skipped(self) -> int:
        """Number of checks that could not be made here; `text` says why."""
        return self._count("skipped")

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, i: int) -> CheckResult:
        return self._rows[i]

    def __iter__(self) -> Iterator[CheckResult]:
        return iter(self._rows)

    def __bool__(self) -> bool:
        return self.failed == 0

    def _summary(self) -> str:
        text = f"{self.passed} passed, {self.failed} failed"
        return f"{text}, {self.skipped} skipped" if self.skipped else text

    def __repr__(self) -> str:
        width = max((len(row.check) for row in self._rows), default=0)
        words = {"passed": "ok  ", "failed": "FAIL", "skipped": "skip"}
        lines = [f"{words[row.outcome]}  {row.check:<{width}}  {row.text or ''}".rstrip() for row in self._rows]
        return "\n".join([*lines, self._summary()])

    def _repr_html_(self) -> str:
        cells = [
            (row.outcome, row.check, row.isa or "", _number(row.error), _number(row.limit), row.text or "")
            for row in self._rows
        ]
        head = "".join(f"<th>{name}</th>" for name in ("", "check", "on", "error", "limit", ""))
        body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in cells)
        return f"<table><tr>{head}</tr>{body}</table><p>{self._summary()}</p>"


def _number(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.2g}"


def check(
    model: PathLike | None = None,
    *,
    quick: bool = False,
    against: PathLike | None = None,
    ops: PathLike | None = None,
    device: str | None = None,
    isa: str | None = None,
    threads: int = 0,
    seed: int = 1,
    dtype: str = "f32",
    tokens: int = 64,
    tolerance: float | None = None,
    grad_tolerance: float | None = None,
) -> Checks:
    """What `krait check` runs: kernels, gradients, threads and networks on this machine against recorded results.

    quick: only the best instruction set of this CPU (or `isa`). model: checks a model folder instead: steps, chunks, batches
    and threads must agree; `against`: its logits, states, loss and gradients with a safetensors file. ops: compares with the
    cases of a safetensors file. Blocks for some seconds.

    >>> import krait
    >>> bool(krait.check(quick=True))
    True
    """
    context = _core.Context(threads=1)
    kind = "model" if model is not None else "ops" if ops is not None else "machine"
    if against is not None and model is None:
        raise ValueError("check: against needs model")
    if model is not None and ops is not None:
        raise ValueError("check: ops and model are two checks; choose one")
    if quick and isa is None and kind == "machine":
        isa = context.isa
    options: dict[str, Any] = {
        "device": device,
        "isa": isa,
        "threads": threads,
        "seed": seed,
        "dtype": dtype,
        "tokens": tokens,
        "tolerance": tolerance,
        "grad_tolerance": grad_tolerance,
    }
    for name, path in (("model", model), ("against", against), ("ops", ops)):
        if path is not None:
            options[name] = os.fsencode(path)
    rows = _core.check(context, kind, options)
    return Checks([CheckResult(*row) for row in rows if row[0] in ("passed", "failed", "skipped")])
