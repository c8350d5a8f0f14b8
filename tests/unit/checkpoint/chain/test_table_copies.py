"""Copies of tables: the one in use is part of the checkpoint, and kept as long as a plan may need it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from holdfast.checkpoint.chain.commits import Chain
from holdfast.checkpoint.chain.plans import Plans, input_of
from holdfast.checkpoint.chain.retention import Retention
from holdfast.checkpoint.chain.view import EMPTY, CheckpointView, from_manifest, to_manifest
from holdfast.checkpoint.savepoints.copy import repacked
from holdfast.checkpoint.savepoints.stored_savepoint import objects_of
from holdfast.checkpoint.savepoints.take import savepoint_manifest
from holdfast.checkpoint.store import names
from holdfast.checkpoint.store.records import PlanRecord, TableCopy
from holdfast.ids import CommitNumber
from tests.unit.checkpoint.kept import MemoryStorage, commit, draft, extent, snapshot


def copy_of(epoch: int, *parts: str) -> TableCopy:
    extents = tuple(extent(f"{names.data_of(epoch)}table-{part}") for part in parts or ("a",))
    return TableCopy(epoch=epoch, read_ms=epoch, columns="k bigint", rows=1, extents=extents)


def plan(epoch: int, copy: TableCopy | None) -> PlanRecord:
    return PlanRecord(
        epoch=epoch,
        attempt=1,
        term=1,
        run="run-1",
        parent=0,
        fingerprint="f",
        parallelism=1,
        clock_ms=epoch,
        slices={},
        tables={} if copy is None else {"prices": copy},
    )


class Led:
    """A job with one lookup. Every epoch is planned, committed, and what may go is retired."""

    def __init__(self, retain: int = 3) -> None:
        self.storage = MemoryStorage()
        self.chain = Chain(self.storage, retain=retain, manifest_every=4)
        self.retiring = Retention(self.chain, sweep_every=1)
        self.view: CheckpointView = EMPTY

    def epoch(self, copy: TableCopy | None, planned: bool = True) -> None:
        in_use = {} if copy is None else {"prices": copy}
        for name in copy.objects if copy is not None else ():
            self.storage.put(name, b"x")
        if planned:
            Plans(self.storage).write(plan(self.view.last_epoch + 1, copy))
        snapshots = (snapshot(self.view.last_epoch),) if self.view.last_epoch else ()
        tables = None if self.view.tables == in_use else in_use
        record = replace(draft(self.view, snapshots=snapshots), tables=tables)
        self.view = commit(self.chain, self.view, record)
        self.retiring.after_commit(self.view)

    def has(self, copy: TableCopy) -> bool:
        return copy.objects <= self.storage.objects.keys()


def test_a_record_that_says_nothing_leaves_the_copy_and_one_without_it_drops_it() -> None:
    led = Led()
    led.epoch(copy_of(1))
    view = commit(led.chain, led.view)
    assert view.tables == {"prices": copy_of(1)}
    assert from_manifest(to_manifest(view), "m").tables == view.tables
    assert commit(led.chain, view, replace(draft(view), tables={})).tables == {}


def test_the_copy_in_use_is_kept_however_old() -> None:
    led = Led()
    for _ in range(30):
        led.epoch(copy_of(1, "a", "b"), planned=False)
    # The first sweep of a run looks at everything.
    led.retiring = Retention(led.chain, sweep_every=1)
    led.epoch(copy_of(1, "a", "b"), planned=False)
    assert led.view.retained_from > 20
    assert led.has(copy_of(1, "a", "b"))


def test_a_copy_goes_once_no_retained_commit_uses_it() -> None:
    led = Led()
    for epoch in range(1, 21):
        led.epoch(copy_of(1 if epoch < 10 else 10))
    assert not led.has(copy_of(1))
    assert led.has(copy_of(10))


@pytest.mark.parametrize("before", [copy_of(1), None])
def test_a_plan_that_is_followed_again_after_a_rewind_finds_its_copy(before: TableCopy | None) -> None:
    led = Led()
    for epoch in range(1, 21):
        led.epoch(before if epoch < 20 else copy_of(20))
    done = led.chain.rewind(led.view.head, CommitNumber(led.view.retained_from), term=1, run="run-1")
    led.view = done.view
    back_at = led.view.last_epoch
    assert back_at < 20
    assert led.view.tables == ({} if before is None else {"prices": before})
    # Commits that cover no epoch give up, one by one, those that used the newer copy; its plan is kept.
    for _ in range(8):
        covers_none = replace(
            draft(led.view, epochs=0, published=20), snapshots=(), deltas=(), staged=(), attempts={}
        )
        led.view = commit(led.chain, led.view, covers_none)
        led.retiring.after_commit(led.view)
    assert led.view.retained_from > 20
    assert Plans(led.storage).named(names.plan(20, 1)).tables == {"prices": copy_of(20)}
    assert led.has(copy_of(20))


def test_another_copy_is_another_input() -> None:
    one, other = copy_of(1), replace(copy_of(1), extents=(replace(extent("data/x"), checksum="other"),))
    assert input_of(plan(3, one)) == input_of(plan(3, replace(one, read_ms=7)))
    assert input_of(plan(3, one)) != input_of(plan(3, other))
    assert input_of(replace(plan(3, one), tables={})) != input_of(plan(3, one))


def test_a_savepoint_carries_the_copy() -> None:
    led = Led()
    led.epoch(copy_of(1, "a", "b"))
    manifest, copies = repacked(savepoint_manifest(led.view), "id")
    carried = manifest.tables["prices"]
    assert (carried.rows, carried.columns, len(carried.extents)) == (1, "k bigint", 2)
    assert carried.objects <= objects_of(manifest).keys()
    taken = {each.object for copy in copies for each in copy.extents}
    assert copy_of(1, "a", "b").objects <= taken
    assert repacked(manifest, "id")[0] == manifest
