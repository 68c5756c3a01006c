"""What a training run tells while it goes: the progress of a step, and the line, the log or the cell that shows it."""

from __future__ import annotations

import math
import os
import shutil
import sys
import time
from typing import Any, NamedTuple, Protocol

from . import notebook


class Progress(NamedTuple):
    """The state of a training run after a step; `on_step` of krait.train gets one.

    loss, accuracy and grad_norm are of the last step; accuracy is NaN unless classes or tokens are predicted. The eval_
    fields are of the last evaluation, NaN before the first. positions counts tokens (or rows of a table) read.
    """

    step: int
    epoch: int
    positions: int
    loss: float
    accuracy: float
    lr: float
    grad_norm: float
    eval_step: int
    eval_loss: float
    eval_accuracy: float
    best_step: int
    best_loss: float
    is_evaluated: bool
    is_saved: bool
    is_done: bool
    steps: int = 0
    seconds: float = 0.0
    positions_per_second: float = math.nan
    memory_bytes: int = 0
    unit: str = "tok"
    shows_accuracy: bool = False


def count_text(value: float) -> str:
    """Three digits and a power of a thousand: 12.3 k."""
    for power, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= power * 0.9995:
            return f"{value / power:#.3g}".rstrip(".") + f" {letter}"
    return f"{value:.3g}"


def bytes_text(value: float) -> str:
    """Three digits and a power of 1024: 12.3 MiB."""
    units = ("B", "KiB", "MiB", "GiB", "TiB")
    power = 0
    while value >= 1023.5 and power < len(units) - 1:
        value /= 1024
        power += 1
    return f"{value:.0f} B" if power == 0 else f"{value:#.3g}".rstrip(".") + f" {units[power]}"


def span_text(seconds: float) -> str:
    """Hours, minutes and seconds: 1:02:03."""
    total = int(seconds + 0.5)
    days, hours, minutes, rest = total // 86400, total // 3600 % 24, total // 60 % 60, total % 60
    if days:
        return f"{days} d {hours}:{minutes:02}:{rest:02}"
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class Rate:
    """Steps and positions per second, averaged over the last ten seconds or so."""

    def __init__(self) -> None:
        self._last: tuple[float, int, int] | None = None
        self._steps = self._seconds = self._positions = self._reading = 0.0

    def put(self, step: int, positions: int, is_slow: bool) -> None:
        """A step has ended; is_slow: with an evaluation or a checkpoint, which is no time of reading."""
        now = time.perf_counter()
        if self._last and now > self._last[0]:
            passed = now - self._last[0]
            fades = math.exp(-passed / 10)
            self._steps = self._steps * fades + step - self._last[1]
            self._seconds = self._seconds * fades + passed
            self._positions *= fades
            self._reading *= fades
            if not is_slow:
                self._positions += positions - self._last[2]
                self._reading += passed
        self._last = (now, step, positions)

    @property
    def positions(self) -> float:
        """Positions per second; NaN if not known yet."""
        return self._positions / self._reading if self._reading > 0 and self._positions > 0 else math.nan

    def eta(self, steps_left: int) -> float:
        """Seconds for so many steps; NaN if not known yet."""
        return steps_left * self._seconds / self._steps if self._steps > 0 else math.nan


def value_text(name: str, value: float, accuracy: float = math.nan) -> str:
    """'loss 1.832 (93.1 %)', or the part that is known."""
    if math.isnan(value):
        return ""
    text = f"{name} {value:#.4g}"
    return text if math.isnan(accuracy) else f"{text} ({100 * accuracy:.1f} %)"


def parts_of(p: Progress, eta: float) -> list[str]:
    """The parts of a line after the step."""
    speed = "" if math.isnan(p.positions_per_second) else f"{count_text(p.positions_per_second)} {p.unit}/s"
    return [
        value_text("loss", p.loss, p.accuracy if p.shows_accuracy else math.nan),
        value_text("eval", p.eval_loss, p.eval_accuracy if p.shows_accuracy else math.nan),
        speed,
        bytes_text(p.memory_bytes) if p.memory_bytes else "",
        "" if math.isnan(eta) or p.is_done else f"eta {span_text(eta)}",
    ]


class Display(Protocol):
    """Shows the progress of a run."""

    def say(self, text: str) -> None:
        """A line of its own."""

    def show(self, progress: Progress, eta: float) -> None:
        """The state after a step; the display decides whether it is time to draw it."""

    def close(self) -> None:
        """The run has ended or is about to raise."""


class Silent:
    """Shows nothing."""

    def say(self, text: str) -> None:
        pass

    def show(self, progress: Progress, eta: float) -> None:
        pass

    def close(self) -> None:
        pass


class Log(Silent):
    """A line every so many seconds, and after each evaluation: for files and pipes."""

    def __init__(self, seconds: float) -> None:
        self._wait = seconds
        self._shown = time.perf_counter()

    def say(self, text: str) -> None:
        print(text, flush=True)

    def show(self, progress: Progress, eta: float) -> None:
        now = time.perf_counter()
        if now - self._shown < self._wait and not (progress.is_evaluated or progress.is_done):
            return
        self._shown = now
        step = f"step {progress.step}" + (f"/{progress.steps}" if progress.steps else "")
        print("  ".join([step, *filter(None, parts_of(progress, eta))]), flush=True)


_EIGHTHS = " ▏▎▍▌▋▊▉"


class Terminal(Silent):
    """One line, drawn again at most ten times a second."""

    def __init__(self) -> None:
        self._columns = 0
        self._shown = 0.0
        self._has_blocks = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"

    def say(self, text: str) -> None:
        sys.stdout.write("\r" + " " * self._columns + "\r" if self._columns else "")
        self._columns = 0
        print(text, flush=True)

    def bar(self, part: float, cells: int = 16) -> str:
        """The bar, with its frame."""
        filled = int(part * cells * 8)
        if not self._has_blocks:
            return "[" + ("=" * (filled // 8)).ljust(cells) + "]"
        text = "█" * (filled // 8) + (_EIGHTHS[filled % 8] if filled % 8 else "")
        return "▕" + text.ljust(cells) + "▏"

    def show(self, progress: Progress, eta: float) -> None:
        now = time.perf_counter()
        if now - self._shown < 0.1 and not (progress.is_evaluated or progress.is_done):
            return
        self._shown = now
        width = len(str(progress.steps)) + 2 if progress.steps else 0
        line = f" step {progress.step:>{width}}" + (f"/{progress.steps}" if progress.steps else "")
        if progress.steps:
            line += " " + self.bar(min(1.0, progress.step / progress.steps))
        most = shutil.get_terminal_size().columns - 1
        for part in filter(None, parts_of(progress, eta)):
            if len(line) + 2 + len(part) <= most:
                line += ("  " if not line.endswith(("▏", "]")) else " ") + part
        line = line[:most]
        sys.stdout.write("\r" + line.ljust(self._columns))
        sys.stdout.flush()
        self._columns = len(line)

    def close(self) -> None:
        if self._columns:
            print(flush=True)
        self._columns = 0


class Cell(Silent):
    """The output cell of a notebook: one display handle, updated at most four times a second."""

    INTERVAL = 0.25

    def __init__(self, display: Any) -> None:
        self._display = display
        self._handle: Any = None
        self._lines: list[str] = []
        self._shown = -math.inf
        self._last: tuple[Progress, float] | None = None
        self._curve = notebook.Curve()

    def say(self, text: str) -> None:
        self._lines.append(text)

    def show(self, progress: Progress, eta: float) -> None:
        self._curve.put(progress.step, progress.loss)
        self._last = (progress, eta)
        now = time.perf_counter()
        if now - self._shown >= self.INTERVAL:
            self._draw(now)

    def _draw(self, now: float) -> None:
        if self._last is None:
            return
        self._shown = now
        progress, eta = self._last
        svg = notebook.progress_svg(progress, parts_of(progress, eta), self._curve, self._lines)
        html = notebook.HTML(svg, f"step {progress.step}")
        if self._handle is None:
            self._handle = self._display(html, display_id=True)
        else:
            self._handle.update(html)

    def close(self) -> None:
        """Draws the last step, which may have come too soon after the one before it."""
        self._draw(time.perf_counter())


def choose_display(progress: bool | str | None, log_seconds: float) -> Display:
    """progress: False: none; True or None: what suits the place; or 'terminal', 'log', 'notebook' by name."""
    kinds = ("terminal", "log", "notebook")
    if isinstance(progress, str) and progress not in kinds:
        raise ValueError(f"progress is {progress!r}, but must be True, False, or one of: {', '.join(kinds)}")
    if progress is False:
        return Silent()
    display = notebook.display_function() if progress in (None, True, "notebook") else None
    if display is not None:
        return Cell(display)
    if progress == "notebook":
        raise RuntimeError("progress='notebook' needs a running Jupyter kernel")
    is_terminal = sys.stdout is not None and sys.stdout.isatty() and os.environ.get("TERM", "") not in ("", "dumb")
    if progress == "terminal" or (is_terminal and progress != "log"):
        return Terminal()
    return Log(log_seconds)
