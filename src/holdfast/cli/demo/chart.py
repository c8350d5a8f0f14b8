"""A picture of the demo, as plain SVG: events that became visible in the sink each second, and the kills."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 960, 420
_LEFT, _RIGHT, _TOP, _BOTTOM = 80, 24, 112, 52
BIN_SECONDS = 1.0


@dataclass(frozen=True)
class Sample:
    """At `at` seconds into the demo, `rows` events were visible in the sink."""

    at: float
    rows: int


@dataclass(frozen=True)
class Mark:
    """A kill, `at` seconds into the demo."""

    at: float
    label: str


def rates(samples: Sequence[Sample], seconds: float = BIN_SECONDS) -> list[float]:
    """Events per second that became visible in each span of `seconds`, from the start of the demo."""
    if not samples:
        return []
    spans = [0.0] * (int(samples[-1].at / seconds) + 1)
    before = 0
    for sample in samples:
        spans[int(sample.at / seconds)] += (sample.rows - before) / seconds
        before = sample.rows
    return spans


def picture(samples: Sequence[Sample], marks: Sequence[Mark], title: str, subtitle: str) -> str:
    """The whole picture as the text of an SVG file."""
    spans = rates(samples)
    until = max([len(spans) * BIN_SECONDS, *(mark.at for mark in marks), 1.0])
    scale = _Scale(until, _round_up(max([*spans, 1.0])))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'width="{WIDTH}" height="{HEIGHT}" '
        'font-family="system-ui, sans-serif" font-size="12" fill="#334155" role="img">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        f'<text x="{_LEFT}" y="30" font-size="18" font-weight="600" fill="#0f172a">{escape(title)}</text>',
        f'<text x="{_LEFT}" y="52">{escape(subtitle)}</text>',
        *_grid(scale),
        *(_bar(scale, number, rate) for number, rate in enumerate(spans) if rate > 0),
        *(part for number, mark in enumerate(marks) for part in _kill(scale, mark, number)),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


@dataclass(frozen=True)
class _Scale:
    seconds: float
    rate: float

    def x(self, at: float) -> float:
        return _LEFT + (WIDTH - _LEFT - _RIGHT) * at / self.seconds

    def y(self, rate: float) -> float:
        return HEIGHT - _BOTTOM - (HEIGHT - _TOP - _BOTTOM) * rate / self.rate


def _grid(scale: _Scale) -> list[str]:
    parts = []
    for step in range(5):
        rate = scale.rate * step / 4
        y = scale.y(rate)
        parts.append(f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{WIDTH - _RIGHT}" y2="{y:.1f}" stroke="#e2e8f0"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{rate:,.0f}</text>')
    every = 5 if scale.seconds <= 60 else 10 if scale.seconds <= 150 else 30
    for second in range(0, int(scale.seconds) + 1, every):
        x, y = scale.x(second), HEIGHT - _BOTTOM + 18
        parts.append(f'<text x="{x:.1f}" y="{y}" text-anchor="middle">{second}</text>')
    middle = (WIDTH + _LEFT - _RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{HEIGHT - 12}" text-anchor="middle">seconds since the start</text>')
    parts.append(f'<text x="{_LEFT}" y="72">events per second that became visible in the sink</text>')
    return parts


def _bar(scale: _Scale, number: int, rate: float) -> str:
    left, right = scale.x(number * BIN_SECONDS), scale.x((number + 1) * BIN_SECONDS)
    top, bottom = scale.y(rate), scale.y(0)
    return (
        f'<rect x="{left + 0.5:.1f}" y="{top:.1f}" width="{max(right - left - 1, 0.5):.1f}" '
        f'height="{bottom - top:.1f}" fill="#2563eb" fill-opacity="0.8"/>'
    )


def _kill(scale: _Scale, mark: Mark, number: int) -> list[str]:
    x = scale.x(mark.at)
    y = _TOP - 8 - 12 * (number % 2)  # two heights, so that neighbours do not overlap
    return [
        f'<line class="kill" x1="{x:.1f}" y1="{y + 3}" x2="{x:.1f}" y2="{HEIGHT - _BOTTOM}" '
        'stroke="#dc2626" stroke-width="1.5" stroke-dasharray="4 3"/>',
        f'<text x="{x:.1f}" y="{y}" text-anchor="middle" fill="#dc2626" font-weight="600">'
        f"{escape(mark.label)}</text>",
    ]


def _round_up(rate: float) -> float:
    """The next number that looks well at the top of an axis of four steps."""
    power = 10.0 ** math.floor(math.log10(rate))
    return next(nice * power for nice in (1, 2, 4, 6, 8, 10) if nice * power >= rate)
