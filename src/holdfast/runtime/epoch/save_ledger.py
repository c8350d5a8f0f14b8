"""What the driver knows of shards whose keys are saved on their own: where they stand, and what was lost.

A shard's working copy has a name of its own (its incarnation). When another one turns up where it was, the
copy is gone, and with it the events that were in no save: they are lost, and counted here.
Always true: `lost` never shrinks; it is an upper bound, because saves that became durable after the copy last
told of itself are not known of.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import convert
from msgspec.structs import replace

from holdfast.checkpoint.store.records import UncoordinatedShard, VersionRecord
from holdfast.ids import KeyGroupRange
from holdfast.tasks.messages import COUNTED, SaveCounts, UncoordinatedResult

Shard = tuple[str, int]


class Ledger:
    """The shards of one stretch, from the marks of the newest commit on."""

    def __init__(
        self,
        ranges: Mapping[Shard, KeyGroupRange],
        shards: int,
        marks: Iterable[UncoordinatedShard],
        shown: Mapping[str, Mapping[str, int]] | None = None,
    ) -> None:
        """`shown`: what the stretch before this one had counted."""
        self._ranges, self._shards = dict(ranges), shards
        self.standing: dict[Shard, UncoordinatedResult] = {}
        self._marks: dict[Shard, UncoordinatedShard] = {}
        self.counts = {
            uid: convert({name: numbers[name] for name in COUNTED}, SaveCounts)
            for uid, numbers in (shown or {}).items()
        }
        self._moved: dict[str, int] = {}
        by_range = {(mark.operator, mark.first_group, mark.end_group): mark for mark in marks}
        for key, groups in self._ranges.items():
            mark = by_range.pop((key[0], groups.first, groups.end), None)
            if mark is not None:
                self._marks[key] = mark
        for mark in by_range.values():
            # The number of shards changed: their copies stay behind, and keys are fetched as they are seen.
            self._moved[mark.operator] = self._moved.get(mark.operator, 0) + mark.lost + mark.unsaved

    def version(self, key: Shard) -> VersionRecord | None:
        """The version that a shard's working copy was at, if that is known."""
        mark = self._marks.get(key)
        return mark.version if mark is not None else None

    def take(self, key: Shard, own: UncoordinatedResult, version: VersionRecord) -> UncoordinatedShard:
        """A chosen result: how the shard stands after it. Gives what the commit is to say."""
        before, groups = self._marks.get(key), self._ranges[key]
        lost = before.lost if before is not None else 0
        discarded = own.discarded
        if before is not None and before.incarnation == own.incarnation:
            discarded -= before.discarded
        elif before is not None:
            lost += before.unsaved
        mark = UncoordinatedShard(
            operator=key[0],
            shards=self._shards,
            first_group=groups.first,
            end_group=groups.end,
            version=version,
            incarnation=own.incarnation,
            unsaved=own.unsaved,
            discarded=own.discarded,
            lost=lost + max(0, discarded) + (self._moved.pop(key[0], 0)),
        )
        self._marks[key] = mark
        self.learn(key, own)
        return mark

    def learn(self, key: Shard, own: UncoordinatedResult) -> UncoordinatedShard | None:
        """What a pass tells of a copy: counts, and how many events are in no save now. Gives what changed."""
        self.counts[key[0]] = self.counts.get(key[0], SaveCounts()).plus(own.counts)
        self.standing[key] = own
        mark = self._marks.get(key)
        if mark is None or mark.incarnation != own.incarnation or mark.unsaved == own.unsaved:
            return None
        self._marks[key] = mark = replace(mark, unsaved=own.unsaved)
        return mark

    def unsaved(self, uid: str) -> int:
        """Events of an operator that are in no durable save that is known of."""
        return sum(mark.unsaved for key, mark in self._marks.items() if key[0] == uid)

    def lost(self, uid: str) -> int:
        """Events of an operator that are lost, at most."""
        known = sum(mark.lost for key, mark in self._marks.items() if key[0] == uid)
        return known + self._moved.get(uid, 0)

    def shown(self) -> dict[str, dict[str, int]]:
        """Everything for people and metrics, by operator."""
        uids = dict.fromkeys(uid for uid, _ in self._ranges)
        return {
            uid: {
                **{name: getattr(self.counts.get(uid, SaveCounts()), name) for name in COUNTED},
                "unsaved": self.unsaved(uid),
                "lost": self.lost(uid),
            }
            for uid in uids
        }
