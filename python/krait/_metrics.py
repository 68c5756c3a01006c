"""metrics.csv of a run folder: the same columns, lines and rules as those of the program."""

from __future__ import annotations

import csv
import math
import os
import time
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from ._progress import Progress

COLUMNS = (
    "step",
    "epoch",
    "positions",
    "loss",
    "accuracy",
    "lr",
    "grad_norm",
    "eval_loss",
    "eval_accuracy",
    "seconds",
    "positions_per_second",
    "memory_bytes",
)
INTEGERS = ("step", "epoch", "positions", "memory_bytes")


def is_kept(step: int, must_stay: bool) -> bool:
    """Every step below 10,000 has a line, then every tenth, from 100,000 on every hundredth, and so on."""
    every = 1
    bound = 10000
    while step >= bound:
        every *= 10
        bound *= 10
    return must_stay or step % every == 0


class Writer:
    """Writes the lines of a run, to a file or only to memory; `continue_after` keeps lines up to that step."""

    def __init__(self, path: Path | None, continue_after: int | None) -> None:
        self._began = time.perf_counter()
        self._last_seconds = 0.0
        self._last_positions = -1
        self.last_step = -1
        self.rows: list[list[float]] = []
        self._file: TextIO | None = None
        if path is None:
            return
        kept = self._kept_lines(path, continue_after) if continue_after is not None and path.exists() else []
        temporary = path.with_name(path.name + ".new")
        temporary.write_text("".join(line + "\n" for line in [",".join(COLUMNS), *kept]), encoding="ascii")
        os.replace(temporary, path)
        self._file = path.open("a", encoding="ascii", newline="\n")

    def _kept_lines(self, path: Path, last_step: int) -> list[str]:
        lines = path.read_text(encoding="ascii").split("\n")
        header = ",".join(COLUMNS)
        if lines[0] != header:
            raise ValueError(f'{path} does not begin with the line "{header}": move it away to start a new file')
        kept = []
        for line in lines[1:-1]:  # what follows the last line break is no whole line
            cells = line.split(",")
            if len(cells) != len(COLUMNS) or int(cells[0]) > last_step:
                break
            kept.append(line)
            self.last_step = int(cells[0])
            self._last_seconds = float(cells[COLUMNS.index("seconds")] or 0)
        self._began -= self._last_seconds
        return kept

    def put(self, p: Progress, memory_bytes: int) -> tuple[float, float]:
        """Adds a step; returns the seconds of the run and the speed of the step (NaN with an evaluation or a checkpoint)."""
        seconds = time.perf_counter() - self._began
        passed, positions = seconds - self._last_seconds, p.positions - self._last_positions
        is_evaluated = p.eval_step == p.step
        is_slow = is_evaluated or p.is_saved or self._last_positions < 0
        rate = positions / passed if passed > 0 and positions > 0 and not is_slow else math.nan
        self._last_seconds, self._last_positions = seconds, p.positions
        if is_kept(p.step, p.is_done or is_evaluated):
            evaluated = (p.eval_loss, p.eval_accuracy) if is_evaluated else (math.nan, math.nan)
            self._write([p.step, p.epoch, p.positions, p.loss, p.accuracy, p.lr, p.grad_norm, *evaluated, seconds, rate,
                         memory_bytes])  # fmt: skip
        return seconds, rate

    def _write(self, row: list[float]) -> None:
        self.rows.append(row)
        self.last_step = int(row[0])
        if self._file is None:
            return
        cells = [str(v) if isinstance(v, int) else "" if math.isnan(v) else f"{v:.9g}" for v in row]
        self._file.write(",".join(cells) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Closes the file; may be called twice."""
        if self._file is not None:
            self._file.close()
        self._file = None


def table(rows: list[list[float]]) -> dict[str, np.ndarray[Any, np.dtype[Any]]]:
    """Rows in memory as arrays by column name."""
    columns = list(zip(*rows)) if rows else [()] * len(COLUMNS)
    return {
        name: np.array(column, dtype=np.int64 if name in INTEGERS else np.float64)
        for name, column in zip(COLUMNS, columns)
    }


def read(path: Path) -> dict[str, np.ndarray[Any, np.dtype[Any]]]:
    """A metrics.csv, of the program or of Python, as arrays by column name: f64 with NaN where a cell is empty.

    Columns that hold integers only become i64. Lines that are not whole, as while a run writes them, are left out.
    """
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.reader(file)
        names = next(reader, [])
        rows = [row for row in reader if len(row) == len(names)]
    columns: dict[str, np.ndarray[Any, np.dtype[Any]]] = {}
    for i, name in enumerate(names):
        cells = [row[i] for row in rows]
        if name in INTEGERS and all(cells):
            columns[name] = np.array([int(cell) for cell in cells], dtype=np.int64)
        else:
            columns[name] = np.array([float(cell) if cell else math.nan for cell in cells], dtype=np.float64)
    return columns
