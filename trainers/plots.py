"""Charts as inline SVG: strings in, strings out, nothing loaded from anywhere."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

WIDTH, HEIGHT = 460, 220
LEFT, RIGHT, TOP, BOTTOM = 56, 12, 12, 30
N_COLOURS = 4

Points = Sequence[tuple[float, float]]


def line_chart(title: str, series: Mapping[str, Points], *, x: str = "step") -> str:
    """Return a figure with a line a series; points that are no numbers are left out."""
    known = {
        name: [(a, b) for a, b in points if math.isfinite(b)] for name, points in series.items()
    }
    known = {name: points for name, points in known.items() if points}
    if not known:
        return _figure(title, '<p class="none">nothing was measured</p>', ())
    every = [point for points in known.values() for point in points]
    x_axis = _Axis([a for a, _ in every], LEFT, WIDTH - RIGHT, whole=True)
    y_axis = _Axis([b for _, b in every], HEIGHT - BOTTOM, TOP)
    parts = [*_grid(x_axis, y_axis, x)]
    for number, points in enumerate(known.values()):
        colour = f"c{number % N_COLOURS}"
        places = [(x_axis.place(a), y_axis.place(b)) for a, b in points]
        path = " ".join(f"{a:.1f},{b:.1f}" for a, b in places)
        parts.append(f'<polyline class="{colour}" points="{path}"/>')
        if len(places) <= 40:
            parts += [f'<circle class="{colour}" cx="{a:.1f}" cy="{b:.1f}" r="2.5"/>'
                      for a, b in places]  # fmt: skip
    return _figure(title, _svg(title, parts), tuple(known))


def bar_chart(title: str, values: Mapping[str, float]) -> str:
    """Return a figure with a bar a value, each with its number."""
    if not values:
        return _figure(title, '<p class="none">nothing was counted</p>', ())
    most = max(max(values.values()), 1e-12)
    height = (HEIGHT - TOP) / max(len(values), 4)
    parts: list[str] = []
    for number, (name, value) in enumerate(values.items()):
        y = TOP + number * height
        size = (WIDTH - 150 - 60) * max(value, 0) / most
        middle = y + height / 2 + 4
        parts += [
            f'<text class="end" x="142" y="{middle:.1f}">{escape(name)}</text>',
            f'<rect class="c0" x="150" y="{y + height * 0.15:.1f}" width="{size:.1f}" '
            f'height="{height * 0.7:.1f}"/>',
            f'<text x="{156 + size:.1f}" y="{middle:.1f}">{short_number(value)}</text>',
        ]
    return _figure(title, _svg(title, parts), ())


def short_number(value: float) -> str:
    """Return a number as a reader wants it: whole, or with four digits that count."""
    return f"{value:,.0f}" if value == int(value) and abs(value) < 1e15 else f"{value:.4g}"


class _Axis:
    """Values to places, with ticks at round numbers."""

    def __init__(self, values: Sequence[float], begin: float, end: float, *, whole: bool = False):
        low, high = min(values), max(values)
        if low == high:
            pad = abs(low) * 0.1 or 1.0
            low, high = low - pad, high + pad
        self._low, self._high, self._begin, self._end = low, high, begin, end
        step = 10 ** math.floor(math.log10((high - low) / 4))
        step *= next(m for m in (1, 2, 5, 10) if (high - low) / (step * m) <= 5)
        step = max(1, round(step)) if whole else step
        first = math.ceil(low / step)
        self.ticks = [i * step for i in range(first, math.floor(high / step + 1e-9) + 1)]

    def place(self, value: float) -> float:
        part = (value - self._low) / (self._high - self._low)
        return self._begin + part * (self._end - self._begin)


def _grid(x_axis: _Axis, y_axis: _Axis, x: str) -> list[str]:
    parts: list[str] = []
    for tick in y_axis.ticks:
        y = y_axis.place(tick)
        parts += [
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>',
            f'<text class="end" x="{LEFT - 6}" y="{y + 4:.1f}">{tick:.4g}</text>',
        ]
    for tick in x_axis.ticks:
        place = x_axis.place(tick)
        parts.append(
            f'<text class="middle" x="{place:.1f}" y="{HEIGHT - BOTTOM + 16}">{tick:g}</text>'
        )
    parts.append(f'<text class="end" x="{WIDTH - RIGHT}" y="{HEIGHT - 4}">{escape(x)}</text>')
    return parts


def _svg(title: str, parts: Sequence[str]) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">'
        + "".join(parts)
        + "</svg>"
    )


def _figure(title: str, inside: str, names: Sequence[str]) -> str:
    legend = "".join(
        f'<span class="k{number % N_COLOURS}">{escape(name)}</span>'
        for number, name in enumerate(names)
        if len(names) > 1
    )
    return f"<figure><figcaption>{escape(title)} {legend}</figcaption>{inside}</figure>"
