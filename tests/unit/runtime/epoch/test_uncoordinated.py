"""What is counted as lost when a working copy is gone."""

from __future__ import annotations

from holdfast.checkpoint.store.records import UncoordinatedShard
from holdfast.ids import shard_ranges
from holdfast.runtime.epoch.uncoordinated import Ledger
from holdfast.state.contract import Version
from holdfast.tasks.messages import SaveCounts, UncoordinatedResult

AT = Version(epoch=1, attempt=1, result="r")


def ledger(shards: int, *marks: UncoordinatedShard) -> Ledger:
    ranges = {("op", shard): groups for shard, groups in enumerate(shard_ranges(8, shards))}
    return Ledger(ranges, shards, marks)


def told(incarnation: str, unsaved: int, discarded: int = 0, saved: int = 0) -> UncoordinatedResult:
    return UncoordinatedResult(incarnation, unsaved, discarded, 0, SaveCounts(saved=saved))


def test_a_copy_that_is_gone_takes_what_was_not_saved_with_it() -> None:
    known = ledger(2)
    known.take(("op", 0), told("a", 30), AT)
    known.take(("op", 1), told("b", 5), AT)
    known.take(("op", 0), told("a", 12), AT)
    assert known.lost("op") == 0
    known.take(("op", 0), told("c", 1), AT)
    assert known.lost("op") == 12
    known.take(("op", 0), told("c", 2), AT)
    assert known.lost("op") == 12
    assert known.unsaved("op") == 2 + 5


def test_the_next_leader_counts_on_from_the_commit() -> None:
    first = ledger(2)
    mark = first.take(("op", 0), told("a", 7), AT)
    second = ledger(2, mark)
    assert second.version(("op", 0)) == AT
    assert second.version(("op", 1)) is None
    assert second.take(("op", 0), told("b", 1), AT).lost == 7
    same = ledger(2, mark)
    assert same.take(("op", 0), told("a", 9), AT).lost == 0


def test_what_a_late_save_threw_away_is_lost_too_and_counted_once() -> None:
    known = ledger(1)
    known.take(("op", 0), told("a", 0, discarded=3), AT)
    known.take(("op", 0), told("a", 0, discarded=3), AT)
    assert known.lost("op") == 3


def test_a_pass_that_saved_everything_leaves_nothing_to_lose() -> None:
    known = ledger(1)
    known.take(("op", 0), told("a", 7), AT)
    changed = known.learn(("op", 0), told("a", 0, saved=7))
    assert changed is not None
    assert changed.unsaved == 0
    assert known.learn(("op", 0), told("a", 0)) is None
    assert ledger(1, changed).take(("op", 0), told("b", 1), AT).lost == 0
    assert known.shown()["op"]["saved"] == 7


def test_another_number_of_shards_leaves_the_copies_behind() -> None:
    known = ledger(2)
    marks = [known.take(("op", shard), told("ab"[shard], 4), AT) for shard in range(2)]
    wider = ledger(4, *marks)
    assert wider.lost("op") == 8
    assert wider.version(("op", 0)) is None
    wider.take(("op", 2), told("c", 1), AT)
    assert wider.lost("op") == 8
