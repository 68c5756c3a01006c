"""Progress and reports as HTML for notebooks. Nothing is imported for it: Jupyter shows any object with _repr_html_.

>>> from krait import notebook
>>> notebook.sparkline([3.0, 2.0, 1.5])[:4]
'<svg'
"""

from __future__ import annotations

import html as _html
import math
import sys
from collections.abc import Sequence
from typing import Any

__all__ = ["HTML", "Curve", "display_function", "page", "progress_svg", "sparkline"]


class HTML:
    """A piece of HTML that a notebook shows.

    >>> HTML("<b>1</b>")._repr_html_()
    '<b>1</b>'
    """

    def __init__(self, html: str, text: str = "<krait HTML>") -> None:
        self.html = html
        self._text = text

    def _repr_html_(self) -> str:
        return self.html

    def __repr__(self) -> str:
        return self._text


class Curve:
    """A curve of any length in at most 2 * `size` points: when they are full, neighbours become their mean.

    >>> curve = Curve(size=2)
    >>> for step in range(1, 9): curve.put(step, float(step))
    >>> len(curve.values) <= 4
    True
    """

    def __init__(self, size: int = 120) -> None:
        self._size = size
        self._every = 1
        self._sum = 0.0
        self._count = 0
        self.values: list[float] = []

    def put(self, step: int, value: float) -> None:
        """The next value; NaN and infinity are left out."""
        if not math.isfinite(value):
            return
        self._sum += value
        self._count += 1
        if self._count < self._every:
            return
        self.values.append(self._sum / self._count)
        self._sum, self._count = 0.0, 0
        if len(self.values) >= 2 * self._size:
            self.values = [(a + b) / 2 for a, b in zip(self.values[::2], self.values[1::2])]
            self._every *= 2


_BLUE, _GREY = "#2a78b8", "#777777"  # readable on light and dark


def _points(values: Sequence[float], x: float, y: float, width: float, height: float) -> str:
    low, high = min(values), max(values)
    scale = height / (high - low) if high > low else 0.0
    step = width / (len(values) - 1)
    return " ".join(f"{x + i * step:.1f},{y + (high - v) * scale:.1f}" for i, v in enumerate(values))


def _line(values: Sequence[float], x: float, y: float, width: float, height: float) -> str:
    if len(values) < 2:
        return ""
    points = _points(values, x, y, width, height)
    return f'<polyline points="{points}" fill="none" stroke="{_BLUE}" stroke-width="1.5" stroke-linejoin="round"/>'


def _svg(width: int, height: int, label: str, body: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'role="img" aria-label="{_html.escape(label, quote=True)}">{body}</svg>'
    )


def sparkline(values: Sequence[float], width: int = 240, height: int = 36) -> str:
    """A small curve as SVG; empty for fewer than two values."""
    body = _line(values, 2, 2, width - 4, height - 4)
    return _svg(width, height, "curve", body) if body else ""


def progress_svg(progress: Any, parts: Sequence[str], curve: Curve, lines: Sequence[str] = ()) -> str:
    """The state of a training run: what it is, a bar, figures and the curve of the loss."""
    width, row = 720, 18
    body = ""
    y = 0
    steps = f"step {progress.step}" + (f" / {progress.steps}" if progress.steps else "")
    texts = [*lines, " · ".join([steps, *filter(None, parts)])]
    for text in texts:
        y += row
        body += f'<text x="0" y="{y - 5}" font-family="monospace" font-size="13" fill="{_GREY}">{_html.escape(text)}</text>'
    done = min(1.0, progress.step / progress.steps) if progress.steps else 0.0
    body += f'<rect x="0" y="{y + 2}" width="{width}" height="6" rx="3" fill="{_GREY}" fill-opacity="0.3"/>'
    body += f'<rect x="0" y="{y + 2}" width="{width * done:.1f}" height="6" rx="3" fill="{_BLUE}"/>'
    body += _line(curve.values, 1, y + 16, width - 2, 44)
    return _svg(width, y + 64, " ".join(texts), body)


def page(html: str, height: int = 720) -> HTML:
    """A whole HTML page inside a cell, apart from the styles of the notebook."""
    frame = (
        f'<iframe srcdoc="{_html.escape(html, quote=True)}" width="100%" height="{height}" style="border:0" '
        'sandbox="allow-same-origin"></iframe>'
    )
    return HTML(frame, f"<krait report, {len(html)} characters of HTML>")


def display_function() -> Any:
    """IPython's display function if this is the kernel of a notebook, else None. Imports nothing by itself."""
    if "ipykernel" not in sys.modules:
        return None
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if shell is None or not hasattr(shell, "kernel"):
        return None
    from IPython.display import display  # type: ignore[import-not-found,unused-ignore]

    return display
