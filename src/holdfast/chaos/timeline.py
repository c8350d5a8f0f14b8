"""The history of a campaign as a picture: who led when, which fault struck when, and how commits went on.

Plain SVG, made of the history alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from html import escape

from holdfast.chaos.faults import Kind
from holdfast.chaos.history import Event

WIDTH = 1180
_LEFT, _RIGHT, _TOP = 190, 30, 92
_LANE, _LIVES, _BARS = 20, 26, 90
_COLOURS = {
    "kill": "#dc2626",
    "pause": "#7c3aed",
    "take": "#7c3aed",
    "storage": "#d97706",
    "clock": "#0891b2",
    "restart": "#475569",
    "rescale": "#475569",
    "damage": "#be185d",
}
RECOVERING, WORKING = "#fca5a5", "#86efac"


@dataclass(frozen=True)
class Span:
    """One life of the driver. `working`: from its first commit on; None: it never committed."""

    name: str
    start: float
    working: float | None
    end: float


def lives(events: Sequence[Event]) -> list[Span]:
    """The lives of the driver in order. A commit is that of the newest life."""
    spans: list[Span] = []
    for event in events:
        if event.kind == "start":
            spans.append(Span(event.who, event.seconds, None, event.seconds))
        elif not spans:
            continue
        elif event.kind == "commit" and spans[-1].working is None:
            spans[-1] = replace(spans[-1], working=event.seconds)
        if event.kind in ("commit", "end", "round-end", "fault", "missed"):
            spans[-1] = replace(spans[-1], end=event.seconds)
    return spans


def timeline(events: Sequence[Event], title: str, subtitle: str) -> str:
    """The whole picture as the text of an SVG file."""
    drawn = Drawing(events)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {drawn.height}" '
        f'width="{WIDTH}" height="{drawn.height}" '
        'font-family="system-ui, sans-serif" font-size="12" fill="#334155" role="img">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{WIDTH}" height="{drawn.height}" fill="#ffffff"/>',
        f'<text x="24" y="30" font-size="18" font-weight="600" fill="#0f172a">{escape(title)}</text>',
        f'<text x="24" y="52">{escape(subtitle)}</text>',
        *drawn.rounds(),
        *drawn.lives(),
        *drawn.faults(),
        *drawn.commits(),
        *drawn.axis(),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


class Drawing:
    """Places for everything: lanes from top to bottom, time from left to right."""

    def __init__(self, events: Sequence[Event]) -> None:
        self._events = [event for event in events if event.kind != "note"]
        self._until = max([1.0, *(event.seconds for event in events)])
        struck = {str(event.facts["fault"]) for event in self._events if event.kind in ("fault", "missed")}
        self._lanes = [str(kind) for kind in Kind if kind in struck]
        self._bars_top = _TOP + _LIVES + _LANE * len(self._lanes) + 24
        self.height = self._bars_top + _BARS + 60

    def rounds(self) -> Iterator[str]:
        """A line where a round begins."""
        for event in self._events:
            if event.kind == "round":
                x, number = self._x(event.seconds), event.facts.get("round", 0)
                name = "reference" if number <= 0 else f"round {number}"
                yield (
                    f'<line x1="{x:.1f}" y1="{_TOP - 14}" x2="{x:.1f}" y2="{self._bars_top + _BARS}" '
                    'stroke="#cbd5e1"/>'
                )
                yield f'<text x="{x + 3:.1f}" y="{_TOP - 6}" font-size="10">{name}</text>'

    def lives(self) -> Iterator[str]:
        """A bar for each life: until its first commit, and after it."""
        yield f'<text x="{_LEFT - 8}" y="{_TOP + 14}" text-anchor="end">driver (a bar is a life)</text>'
        for span in lives(self._events):
            middle = span.end if span.working is None else span.working
            for start, end, colour in ((span.start, middle, RECOVERING), (middle, span.end, WORKING)):
                width = self._x(end) - self._x(start) - 0.6
                if width > 0:
                    yield (
                        f'<rect class="life" x="{self._x(start):.1f}" y="{_TOP + 2}" width="{width:.1f}" '
                        f'height="16" fill="{colour}"><title>{escape(span.name)}</title></rect>'
                    )

    def faults(self) -> Iterator[str]:
        """A mark for each fault in the lane of its kind; an empty one where it found nothing to strike."""
        for number, kind in enumerate(self._lanes):
            y = _TOP + _LIVES + _LANE * number + _LANE / 2
            count = sum(1 for event in self._events if event.kind == "fault" and event.facts["fault"] == kind)
            yield (
                f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{WIDTH - _RIGHT}" y2="{y:.1f}" stroke="#f1f5f9"/>'
                f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{escape(kind)} ({count})</text>'
            )
        for event in self._events:
            if event.kind in ("fault", "missed"):
                kind = str(event.facts["fault"])
                y = _TOP + _LIVES + _LANE * self._lanes.index(kind) + _LANE / 2
                colour = next(shade for stem, shade in _COLOURS.items() if kind.startswith(stem))
                fill = colour if event.kind == "fault" else "none"
                yield (
                    f'<circle class="{event.kind}" cx="{self._x(event.facts["began"]):.1f}" cy="{y:.1f}" '
                    f'r="4" fill="{fill}" stroke="{colour}"><title>{escape(event.what)}</title></circle>'
                )

    def commits(self) -> Iterator[str]:
        """How many commits there were in each piece of time."""
        piece = max(1.0, self._until / 240)
        counts = [0] * (int(self._until / piece) + 1)
        for event in self._events:
            if event.kind == "commit":
                counts[int(event.seconds / piece)] += 1
        most = max([1, *counts])
        bottom = self._bars_top + _BARS
        yield (
            f'<text x="{_LEFT - 8}" y="{self._bars_top + 12}" text-anchor="end">commits seen</text>'
            f'<text x="{_LEFT - 8}" y="{self._bars_top + 27}" text-anchor="end">'
            f"(at most {most} in {piece:.0f} s)</text>"
        )
        for number, count in enumerate(counts):
            if count:
                left, right = self._x(number * piece), self._x((number + 1) * piece)
                height = _BARS * count / most
                yield (
                    f'<rect x="{left:.1f}" y="{bottom - height:.1f}" height="{height:.1f}" '
                    f'width="{max(right - left - 0.5, 0.5):.1f}" fill="#2563eb" fill-opacity="0.8"/>'
                )

    def axis(self) -> Iterator[str]:
        bottom = self._bars_top + _BARS
        yield (
            f'<line x1="{_LEFT}" y1="{bottom}" x2="{WIDTH - _RIGHT}" y2="{bottom}" stroke="#94a3b8"/>'
            f'<text x="{(_LEFT + WIDTH) / 2}" y="{bottom + 36}" text-anchor="middle">seconds</text>'
            f'<text x="24" y="{bottom + 36}">'
            f'<tspan fill="#ef4444">&#9632;</tspan> starting, recovering '
            f'<tspan fill="#22c55e">&#9632;</tspan> committing</text>'
        )
        every = next(step for step in (5, 10, 30, 60, 120, 300, 600, 10**9) if self._until / step <= 24)
        for second in range(0, int(self._until) + 1, every):
            yield f'<text x="{self._x(second):.1f}" y="{bottom + 16}" text-anchor="middle">{second}</text>'

    def _x(self, seconds: float) -> float:
        return _LEFT + (WIDTH - _LEFT - _RIGHT) * seconds / self._until
