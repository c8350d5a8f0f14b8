"""The jobs of the simulation: which parts they have, and the channels between them.

Rows are the numbers 1, 2, 3 and so on, of each source. A part hands on what it reads from the first of its
inputs: every row, or only whole groups of two, so that some of its epochs have nothing for a channel. A part
that saves no state counts windows of so many rows, and hands on the rows of those that are closed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

SOURCE = "in"


@dataclass(frozen=True)
class Link:
    """A channel. `group`: how many rows are handed on together; `limit`: how many epochs may wait in it."""

    before: str
    after: str
    group: int = 1
    limit: int = 2

    def handed_on(self, through: int) -> int:
        """The last row in the channel, when `through` is the last that the part before it has read."""
        return through - through % self.group


@dataclass(frozen=True)
class Shape:
    """`inputs`: of each part, in the order of the parts; channels and sources by uid. `windows`: of a part
    that saves no state, how many rows a window has; the channels that leave it hand on as many together.
    `members`: of a part that a set of replicas leads, how many."""

    inputs: dict[str, tuple[str, ...]]
    links: dict[str, Link]
    windows: dict[str, int] = field(default_factory=dict)
    members: dict[str, int] = field(default_factory=dict)

    def closed(self, part: str, through: int) -> int:
        """The last row of the windows that are closed when `through` is the last that was read."""
        return through - through % self.windows[part]

    def leaving(self, part: str) -> dict[str, Link]:
        return {uid: link for uid, link in self.links.items() if link.before == part}

    @property
    def channels(self) -> dict[str, tuple[str, str]]:
        """As the engine names them."""
        return {uid: (link.before, link.after) for uid, link in self.links.items()}

    @property
    def parts(self) -> tuple[str, ...]:
        return tuple(self.inputs)


PAIR = Shape({"A": (SOURCE,), "B": ("ab",)}, {"ab": Link("A", "B")})
CHAIN = Shape(
    {"A": (SOURCE,), "B": ("ab",), "C": ("bc",)}, {"ab": Link("A", "B", group=2), "bc": Link("B", "C")}
)
DIAMOND = Shape(
    {"A": (SOURCE,), "B": ("long-1",), "D": ("short", "long-2")},
    {
        "short": Link("A", "D"),
        "long-1": Link("A", "B", limit=3),
        "long-2": Link("B", "D", group=2),
    },
)
JOINED = Shape(
    {"A": (SOURCE,), "B": (SOURCE,), "D": ("left", "right", SOURCE)},
    {"left": Link("A", "D"), "right": Link("B", "D", group=2)},
)
APART = Shape({"A": (SOURCE,), "B": ("ab",), "C": (SOURCE,)}, {"ab": Link("A", "B")})
WINDOWS = Shape(
    {"A": (SOURCE,), "U": ("au",), "C": ("uc",)},
    {"au": Link("A", "U"), "uc": Link("U", "C", group=5)},
    windows={"U": 5},
)
WINDOWS_LAST = Shape(
    {"A": (SOURCE,), "B": ("ab",), "U": ("bu", "au")},
    {"ab": Link("A", "B"), "bu": Link("B", "U"), "au": Link("A", "U", group=2)},
    windows={"U": 7},
)
SHAPES = {"pair": PAIR, "chain": CHAIN, "diamond": DIAMOND, "joined": JOINED, "apart": APART}
WINDOWED = {"windows": WINDOWS, "windows-last": WINDOWS_LAST}
