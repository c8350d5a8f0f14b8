"""Places in a Kafka cluster: partitions, offsets, and what a slice reads of them. Pure; asks nobody.

A position is, by topic, the id that the topic had and for each partition the next offset to be read, with
the leader epoch in which it was known: `{"events": {"id": "UZCc...", "at": {"0": [17, 2]}}}`. The id tells a
topic that was deleted and made again; the epoch lets the broker tell a log that was cut short and grew again.
Always true: an offset that a slice reads up to is out of it, and the first of the slice that follows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from holdfast.connectors.contract import Json

UNCHECKED = -1
"""The leader epoch of a place where there is none to compare."""


class Partition(NamedTuple):
    """One log of a topic."""

    topic: str
    number: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.number}"


class Place(NamedTuple):
    """The next offset to be read; the leader epoch (-1: not known) in which it was there."""

    offset: int
    leader_epoch: int


@dataclass(frozen=True)
class Position:
    """How far every partition was read, and the ids of their topics."""

    ids: Mapping[str, str]
    places: Mapping[Partition, Place]

    @staticmethod
    def of(stored: Json) -> Position:
        ids = {topic: entry["id"] for topic, entry in stored.items()}
        places = {
            Partition(topic, int(number)): Place(*place)
            for topic, entry in stored.items()
            for number, place in entry["at"].items()
        }
        return Position(ids, places)

    def stored(self) -> Json:
        found: dict[str, Json] = {topic: {"id": id, "at": {}} for topic, id in sorted(self.ids.items())}
        for partition, place in sorted(self.places.items()):
            found[partition.topic]["at"][str(partition.number)] = list(place)
        return found


class Range(NamedTuple):
    """What a slice reads of one partition: `first` is in, `end` is out; `waits`: rows were there after it."""

    topic: str
    number: int
    first: int
    end: int
    leader_epoch: int
    waits: bool

    @property
    def partition(self) -> Partition:
        return Partition(self.topic, self.number)

    @property
    def size(self) -> int:
        return self.end - self.first


def ranges_of(detail: Json) -> list[Range]:
    """The ranges of a slice, empty ones too: every partition that there was."""
    return [Range(*entry) for entry in detail]


def shares(waiting: Mapping[Partition, int], most: int | None) -> dict[Partition, int]:
    """How many offsets to read of each partition. A partition with little gives what it does not need to the
    others, so that none falls behind because of others that have much."""
    if most is None or sum(waiting.values()) <= most:
        return dict(waiting)
    given, left = {}, max(1, most)
    by_size = sorted(waiting.items(), key=lambda each: (each[1], each[0]))
    for number, (partition, size) in enumerate(by_size):
        # Rounded up, so that a limit below the number of partitions still reads something.
        given[partition] = min(size, -(-left // (len(by_size) - number)), left)
        left -= given[partition]
    return given


def in_tasks(
    ranges: Iterable[Range], ends: Mapping[Partition, Place], tasks: int, least: int
) -> list[tuple[Range, ...]]:
    """Ranges dealt to at most so many tasks, about the same number of offsets each. A range is cut where it
    is larger than a task's part, and not into pieces of less than `least`. `ends`: where the slice ends."""
    wanted = [each for each in ranges if each.size]
    part = max(least, -(-sum(each.size for each in wanted) // max(1, tasks)))
    pieces = [piece for each in wanted for piece in _cut(each, ends[each.partition].leader_epoch, part)]
    bins: list[list[Range]] = [[] for _ in range(min(tasks, len(pieces)))]
    loads = [0] * len(bins)
    for piece in sorted(pieces, key=lambda each: (-each.size, each)):
        lightest = loads.index(min(loads))
        bins[lightest].append(piece)
        loads[lightest] += piece.size
    return [tuple(sorted(each)) for each in bins]


def _cut(whole: Range, end_epoch: int, part: int) -> Sequence[Range]:
    """Only the first piece begins at the place that the position holds, so only there a leader epoch says
    something; and only if leaders have changed since: without that no log was cut short."""
    count = max(1, round(whole.size / part))
    edges = [whole.first + whole.size * number // count for number in range(count + 1)]
    pieces = [whole._replace(first=first, end=end) for first, end in pairwise(edges) if end > first]
    first_epoch = UNCHECKED if whole.leader_epoch == end_epoch else whole.leader_epoch
    return [pieces[0]._replace(leader_epoch=first_epoch)] + [
        piece._replace(leader_epoch=UNCHECKED) for piece in pieces[1:]
    ]
