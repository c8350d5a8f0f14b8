"""The outline of a job as a picture: SVG, parts as boxes from left to right, channels as arrows.

Always true: every part and every channel is drawn; names that are too long are cut in the picture and whole
in its titles. No two boxes overlap, no label lies on a box or on another label, and no arrow crosses a box.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from xml.sax.saxutils import escape

from holdfast.graph.outline import ChannelOutline, Outline, PartOutline

CHARS_MAX = 34
"""Of a line in a box, or of a label."""
CHAR_WIDTH, LEGEND_WIDTH = 8.0, 6.6
"""Of a character: of short lines, which may have wide ones, and of long ones."""
LINE, PORT, LANE = 19, 24, 10
"""Heights of a line of text and of an arrow's place at a box; distance of neighbouring arrows."""
STEP = 4
PAD, MARGIN, BETWEEN = 14, 24, 28
_INK, _FAINT, _EDGE, _BOX, _SOURCE = "#202124", "#5f6368", "#44546a", "#e8f0fe", "#1a73e8"


@dataclass(frozen=True)
class _Box:
    part: PartOutline
    lines: tuple[tuple[str, str], ...]
    """Text, and its colour."""
    x: float
    y: float
    width: float
    height: float


def draw(found: Outline) -> str:
    """The picture."""
    layout = _Layout(found)
    body = [*layout.boxes_drawn(), *layout.channels_drawn()]
    legend, bottom = _legend(found, layout.bottom)
    wide = max(layout.right, *(len(text) * LEGEND_WIDTH + 2 * MARGIN for text in _legend_lines(found)))
    title = escape(f"Job {found.job}: its parts and channels")
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide:.0f} {bottom:.0f}" '
            f'width="{wide:.0f}" height="{bottom:.0f}" font-family="sans-serif" font-size="13" role="img">',
            f"  <title>{title}</title>",
            '  <defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" '
            f'orient="auto"><path d="M0 0 L8 4 L0 8 z" fill="{_EDGE}"/></marker></defs>',
            f'  <rect width="{wide:.0f}" height="{bottom:.0f}" fill="#ffffff"/>',
            *(f"  {line}" for line in [*body, *legend]),
            "</svg>",
            "",
        ]
    )


class _Layout:
    """Where everything is. A column holds the parts of one rank; between columns are first the labels of the
    channels that leave the left one, then a lane for each arrow that goes up or down there."""

    def __init__(self, found: Outline) -> None:
        self._channels = found.channels
        self._ranks = {part.name: part.rank for part in found.parts}
        columns = [
            [part for part in found.parts if part.rank == rank]
            for rank in range(max(self._ranks.values()) + 1)
        ]
        self._lanes = self._lanes_of(len(columns))
        self._lane_x: list[float] = []
        self.boxes: dict[str, _Box] = {}
        x = float(MARGIN)
        for rank, parts in enumerate(columns):
            x = self._place(parts, x) + self._gap(rank)
        self.right = x + MARGIN
        self._under = max(box.y + box.height for box in self.boxes.values()) + BETWEEN
        far = sum(self._is_far(channel) for channel in self._channels)
        self.bottom = self._under + far * PORT

    def boxes_drawn(self) -> Iterator[str]:
        for box in self.boxes.values():
            yield (
                f'<rect x="{box.x:.0f}" y="{box.y:.0f}" width="{box.width:.0f}" height="{box.height:.0f}" '
                f'rx="8" fill="{_BOX}" stroke="{_EDGE}"><title>{escape(box.part.name)}</title></rect>'
            )
            for number, (text, colour) in enumerate(box.lines):
                look = ' font-weight="bold" font-size="15"' if number == 0 else ""
                y = box.y + PAD + LINE * (number + 0.7)
                yield _text(box.x + PAD, y, text, colour, look)

    def channels_drawn(self) -> Iterator[str]:
        far = 0
        for channel in self._channels:
            start, end = self._port(channel, channel.sender), self._port(channel, channel.reader)
            first = self._lane(channel, self._ranks[channel.sender])
            path = f"M{start[0]:.0f} {start[1]:.0f} H{first:.0f}"
            if self._is_far(channel):
                second = self._lane(channel, self._ranks[channel.reader] - 1)
                path += f" V{self._under + far * PORT:.0f} H{second:.0f}"
                far += 1
            path += f" V{end[1]:.0f} H{end[0] - 2:.0f}"
            yield f'<path d="{path}" fill="none" stroke="{_EDGE}" marker-end="url(#tip)"/>'
            yield _text(start[0] + 8, start[1] - 5, channel.uid, _FAINT, ' font-size="12"')

    def _place(self, parts: list[PartOutline], x: float) -> float:
        """Put the parts of one rank below one another; gives where their column ends."""
        lines = {part.name: _lines(part) for part in parts}
        width = max(_width(text) for each in lines.values() for text, _ in each) + 2 * PAD
        y = float(MARGIN)
        for part in parts:
            ports = max(len(self._ending(part.name)), len(self._leaving(part.name)))
            height = max(len(lines[part.name]) * LINE, ports * PORT) + 2 * PAD
            self.boxes[part.name] = _Box(part, lines[part.name], x, y, width, height)
            y += height + BETWEEN
        return x + width

    def _gap(self, rank: int) -> float:
        """Find the lanes after a column; gives how wide the space there is."""
        leaving = [channel.uid for channel in self._channels if self._ranks[channel.sender] == rank]
        labels = max((_width(uid) for uid in leaving), default=0.0)
        self._lane_x.append(labels + MARGIN)
        return labels + MARGIN + len(self._lanes[rank]) * LANE + MARGIN if self._lanes[rank] else 0.0

    def _lanes_of(self, columns: int) -> list[list[ChannelOutline]]:
        lanes: list[list[ChannelOutline]] = [[] for _ in range(columns)]
        for channel in self._channels:
            for rank in dict.fromkeys((self._ranks[channel.sender], self._ranks[channel.reader] - 1)):
                lanes[rank].append(channel)
        return lanes

    def _lane(self, channel: ChannelOutline, rank: int) -> float:
        column = next(box for box in self.boxes.values() if box.part.rank == rank)
        number = self._lanes[rank].index(channel)
        return column.x + column.width + self._lane_x[rank] + number * LANE

    def _port(self, channel: ChannelOutline, part: str) -> tuple[float, float]:
        """Where a channel leaves or enters a box."""
        box, leaves = self.boxes[part], part == channel.sender
        places = self._leaving(part) if leaves else self._ending(part)
        y = box.y + box.height * (places.index(channel) + 1) / (len(places) + 1)
        # Arrows that leave and those that arrive run at heights of their own: none lies on another.
        y = 2 * STEP * round(y / (2 * STEP)) + (0 if leaves else STEP)
        return (box.x + box.width if leaves else box.x), y

    def _is_far(self, channel: ChannelOutline) -> bool:
        """Whether columns lie between its parts: it goes below them."""
        return self._ranks[channel.reader] - self._ranks[channel.sender] > 1

    def _leaving(self, part: str) -> list[ChannelOutline]:
        return [channel for channel in self._channels if channel.sender == part]

    def _ending(self, part: str) -> list[ChannelOutline]:
        return [channel for channel in self._channels if channel.reader == part]


def _lines(part: PartOutline) -> tuple[tuple[str, str], ...]:
    items = [("source", part.sources), ("operator", part.operators), ("sink", part.sinks)]
    inside = [
        (f"{what} {each.uid}{' (Uncoordinated)' if each.uncoordinated else ''}", _INK)
        for what, found in items
        for each in found
    ]
    return (part.name, _INK), (part.protection, _SOURCE), *inside


def _legend_lines(found: Outline) -> list[str]:
    return [
        line
        for name, told, users in found.protections()
        for line in (
            f"{name} ({', '.join(users)}): gap when a node dies: {told.gap}; survives {told.survives}",
            f"    costs {told.costs}; needs {told.needs}",
        )
    ]


def _legend(found: Outline, top: float) -> tuple[list[str], float]:
    lines = _legend_lines(found)
    look = f'fill="{_FAINT}" xml:space="preserve"'
    drawn = [
        f'<text x="{MARGIN}" y="{top + LINE * (n + 1):.0f}" {look}>{escape(text)}</text>'
        for n, text in enumerate(lines)
    ]
    return drawn, top + LINE * (len(lines) + 1) + MARGIN


def _width(text: str) -> float:
    return min(len(text), CHARS_MAX) * CHAR_WIDTH


def _text(x: float, y: float, text: str, colour: str, look: str) -> str:
    cut = text if len(text) <= CHARS_MAX else f"{text[: CHARS_MAX - 1]}…"
    title = f"<title>{escape(text)}</title>" if cut != text else ""
    return f'<text x="{x:.0f}" y="{y:.0f}" fill="{colour}"{look}>{title}{escape(cut)}</text>'
