"""The jobs of the simulation: which parts they have, and the channels between them.

Rows are the numbers 1, 2, 3 and so on, of each source. A part hands on what it reads from the first of its
inputs: every row, or only whole groups of two, so that some of its epochs have nothing for a channel.
"""

from __future__ import annotations

from dataclasses import dataclass

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
    """`inputs`: of each part, in the order of the parts; channels and sources by uid."""

    inputs: dict[str, tuple[str, ...]]
    links: dict[str, Link]

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
SHAPES = {"pair": PAIR, "chain": CHAIN, "diamond": DIAMOND, "joined": JOINED}
