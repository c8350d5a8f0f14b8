from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace as with_view
from pathlib import Path

import pytest
from msgspec.structs import replace as replace_record

from holdfast.checkpoint.chain.checkpoint import Checkpoint, open_checkpoint
from holdfast.checkpoint.chain.commits import Chain
from holdfast.checkpoint.chain.plans import Plans, PlanWritten
from holdfast.checkpoint.chain.retention import Retention
from holdfast.checkpoint.chain.settled import Settled
from holdfast.checkpoint.chain.terms import claim as claim_term
from holdfast.checkpoint.chain.view import CheckpointView, from_manifest, to_manifest
from holdfast.checkpoint.savepoints.start_from import finish_claim, open_seeded, seed_checkpoint
from holdfast.checkpoint.savepoints.stored_savepoint import find_claim, read_savepoint, verify_savepoint
from holdfast.checkpoint.store import names
from holdfast.checkpoint.store.envelope import seal
from holdfast.checkpoint.store.records import PartitionTime, PlanRecord
from holdfast.checkpoint.store.savepoint_records import ClaimedRecord
from holdfast.errors import CorruptionError, FencedOut, HoldfastError, RestoreError
from holdfast.ids import CommitNumber, EpochId
from holdfast.storage.contract import Put, Storage
from holdfast.storage.local_directory import LocalStorage
from holdfast.testing.clocks import ManualClock
from holdfast.testing.faulty_storage import Fault, FaultKind, FaultyStorage
from tests.unit.checkpoint.kept import GROUPS, MemoryStorage, commit, draft, on_each_part
from tests.unit.checkpoint.saved import RANGES, advance, contents, grown, new_checkpoint, take


class Place(MemoryStorage):
    """Memory with a url of its own."""

    def __init__(self, url: str = "memory://new") -> None:
        super().__init__()
        self.url = url


def saved(*, stopped: bool = False) -> Place:
    checkpoint, savepoint = new_checkpoint(MemoryStorage()), Place("memory://savepoint")
    grown(checkpoint)
    take(checkpoint, savepoint, stopped=stopped)
    return savepoint


def begin(
    storage: Storage,
    savepoint: Storage,
    *,
    job: str = "sums",
    run: str = "run-a",
    claim: bool = False,
    key_groups: int = GROUPS,
) -> Checkpoint:
    """As a driver starts: open, claim a term, seed."""
    clock = ManualClock(5_000)
    checkpoint = open_seeded(storage, savepoint, job, key_groups, clock, identity=run, claim=claim)
    term = claim_term(storage, run, "host", 1, clock.now_ms())
    seed_checkpoint(checkpoint, savepoint, term=term, run=run)
    return checkpoint


def plain(view: CheckpointView) -> CheckpointView:
    """What of a view does not depend on when and by whom it was committed."""
    snapshots = {uid: tuple(sorted(files, key=lambda f: f.object)) for uid, files in view.snapshots.items()}
    return with_view(
        view, number=0, checksum="", term=0, run="", retained_from=0, given_up_below=0, manifest="",
        snapshots=snapshots,
    )  # fmt: skip


def test_a_new_checkpoint_begins_with_the_state_of_the_savepoint() -> None:
    savepoint, storage = saved(), Place()
    before = dict(savepoint.objects)
    checkpoint = begin(storage, savepoint)
    view = Chain(storage).load()
    record = read_savepoint(savepoint)
    assert plain(view) == plain(from_manifest(record.manifest, ""))
    assert (view.number, view.last_epoch, view.published_through) == (1, 9, {})
    assert contents(storage, to_manifest(view)) == contents(savepoint, record.manifest)
    assert (checkpoint.job.seeded_from, checkpoint.job.identity) == (record.id, "run-a")
    assert savepoint.objects == before


def test_event_time_goes_on_where_it_was_in_the_savepoint() -> None:
    """What has expired by it would come back otherwise, and late rows would be on time."""
    checkpoint, savepoint, storage = new_checkpoint(MemoryStorage()), Place("memory://savepoint"), Place()
    view = grown(checkpoint)
    times = {"in": {"": PartitionTime(newest_us=7, seen_ms=1)}}
    record = replace_record(draft(view, deltas=()), staged=(), event_times=times, watermarks={"sum": 5})
    commit(checkpoint.chain, view, record)
    take(checkpoint, savepoint)
    begin(storage, savepoint)
    seeded = Chain(storage).load()
    assert seeded.event_times == {**view.event_times, **times}
    assert seeded.watermarks == {**view.watermarks, "sum": 5}


def test_commits_rewinds_and_plans_go_on_after_the_seed() -> None:
    storage = Place()
    checkpoint = begin(storage, saved())
    view = checkpoint.chain.load()
    plan = PlanRecord(
        epoch=10,
        attempt=1,
        term=1,
        run="run-a",
        parent=1,
        fingerprint="f",
        parallelism=2,
        clock_ms=1,
        slices={},
    )
    assert Plans(storage).newest(EpochId(10)) is None
    assert isinstance(Plans(storage).write(plan), PlanWritten)
    for _ in range(2):
        view = advance(checkpoint, view, run="run-a")
    assert Chain(storage).load() == view
    assert (view.number, view.last_epoch, view.rows) == (3, 11, 110)
    back = checkpoint.chain.rewind(view.head, CommitNumber(1), term=1, run="run-a").view
    assert plain(back) == plain(
        with_view(
            Chain(storage).view_at(1), published_through={"out": 8}, clock_ms=11, settled=Settled({"out": 11})
        )
    )
    assert advance(checkpoint, back, run="run-a").last_epoch == 10


def test_the_seeded_files_live_until_newer_snapshots_replace_them_and_go_then() -> None:
    storage = Place()
    checkpoint = begin(storage, saved())
    chain = Chain(storage, retain=2, manifest_every=4)
    checkpoint = Checkpoint(storage, checkpoint.job, chain, checkpoint.plans, Retention(chain, sweep_every=1))
    view = chain.load()
    seeded = view.objects()
    assert len(seeded) == 3
    for number in range(20):
        view = advance(checkpoint, view, snapshots=RANGES if number in (6, 9) else (), run="run-a")
        checkpoint.retention.after_commit(view)
        for kept in range(view.retained_from, view.number + 1):
            missing = Chain(storage).view_at(kept).objects() - storage.objects.keys()
            assert not missing, f"commit {kept} needs {missing}"
        if number < 9:
            assert seeded <= storage.objects.keys()
    assert not seeded & storage.objects.keys()


def test_two_jobs_begin_with_one_savepoint_and_a_moved_one_is_as_good(tmp_path: Path) -> None:
    old = new_checkpoint(LocalStorage(tmp_path / "old", fsync=False))
    expected = contents(old.storage, to_manifest(grown(old)))
    take(old, LocalStorage(tmp_path / "savepoint", fsync=False))
    a = LocalStorage(tmp_path / "a", fsync=False)
    begin(a, LocalStorage(tmp_path / "savepoint"), job="a", run="run-a")
    os.rename(tmp_path / "savepoint", tmp_path / "moved")
    b = LocalStorage(tmp_path / "b", fsync=False)
    begin(b, LocalStorage(tmp_path / "moved"), job="b", run="run-b")
    assert verify_savepoint(LocalStorage(tmp_path / "moved")) == []
    for storage in (a, b):
        assert contents(storage, to_manifest(Chain(storage).load())) == expected


def test_starting_again_goes_on_whether_or_not_the_savepoint_is_still_there() -> None:
    savepoint, storage = saved(), Place()
    checkpoint = begin(storage, savepoint)
    view = advance(checkpoint, checkpoint.chain.load(), run="run-a")
    assert begin(storage, savepoint, run="run-b").chain.load() == view
    assert begin(storage, Place("memory://gone"), run="run-c").chain.load() == view
    other = new_checkpoint(MemoryStorage())
    grown(other)
    second = Place("memory://other")
    take(other, second, id="sp-2")
    with pytest.raises(RestoreError, match=r"cannot begin with savepoint sp-2.*began with savepoint sp-1"):
        begin(storage, second)


def after_every_fault(start: Callable[[Storage, Storage], object], savepoint: Place) -> list[Place]:
    """Start with each call in turn failing, on either side, then start again; what is there in the end."""
    ends = []
    for side in ("checkpoint", "savepoint"):
        for kind in (FaultKind.FAIL, FaultKind.LOSE_ANSWER):
            for after in range(200):
                ends.append(inner := Place())
                copy = Place(savepoint.url)
                copy.objects = dict(savepoint.objects)
                new = FaultyStorage(inner, [Fault(kind=kind, after=after)] if side == "checkpoint" else [])
                old = FaultyStorage(copy, [Fault(kind=kind, after=after)] if side == "savepoint" else [])
                failed = False
                try:
                    start(new, old)
                except HoldfastError:
                    failed = True
                    new.heal()
                    old.heal()
                    start(new, old)
                faulty = new if side == "checkpoint" else old
                if not failed and len(faulty.calls) <= after:
                    break
            else:
                raise AssertionError("the faults were to run out")
    return ends


def test_a_start_interrupted_at_any_call_is_finished_by_the_next() -> None:
    savepoint = saved()
    straight = Place()
    begin(straight, savepoint)
    expected = plain(Chain(straight).load())
    ends = after_every_fault(begin, savepoint)
    assert len(ends) > 40
    for end in ends:
        assert plain(Chain(end).load()) == expected
        assert Chain(end).load().objects() <= end.objects.keys()
        assert end.objects.keys() - straight.objects.keys() <= {names.term(2)}


def test_a_checkpoint_that_waits_for_its_savepoint_never_begins_empty() -> None:
    savepoint, storage = saved(), Place()
    open_seeded(storage, savepoint, "sums", GROUPS, ManualClock(1), identity="x", claim=False)
    with pytest.raises(RestoreError, match=r"is to begin with savepoint sp-1.*from_savepoint again"):
        open_checkpoint(storage, "sums", GROUPS, ManualClock(1), identity="y")
    begin(storage, savepoint)
    assert open_checkpoint(storage, "sums", GROUPS, ManualClock(1), identity="y").job.identity == "x"


def two_leaders(storage: Place, savepoint: Place) -> list[tuple[Checkpoint, int, str]]:
    leaders = []
    for run in ("old", "new"):
        checkpoint = open_seeded(
            storage, savepoint, "sums", GROUPS, ManualClock(1), identity=run, claim=False
        )
        leaders.append((checkpoint, claim_term(storage, run, "host", 1, 0), run))
    return leaders


def seed_while(
    first: tuple[Checkpoint, int, str], other: tuple[Checkpoint, int, str], savepoint: Place
) -> None:
    """`first` seeds; while it copies, `other` does all of it."""
    checkpoint, term, run = first
    alone = checkpoint.storage.put_stream

    def meanwhile() -> None:
        checkpoint.storage.put_stream = alone  # type: ignore[method-assign]
        seed_checkpoint(other[0], savepoint, term=other[1], run=other[2])

    on_each_part(checkpoint.storage, meanwhile)
    seed_checkpoint(checkpoint, savepoint, term=term, run=run)


def test_the_seed_of_an_older_leader_counts() -> None:
    savepoint, storage = saved(), Place()
    old, new = two_leaders(storage, savepoint)
    seed_while(new, old, savepoint)
    view = new[0].chain.load()
    assert (view.number, view.run, view.last_epoch) == (1, "old", 9)
    assert advance(new[0], view, term=new[1], run="new").last_epoch == 10


def test_the_seed_of_a_newer_leader_fences() -> None:
    savepoint, storage = saved(), Place()
    old, new = two_leaders(storage, savepoint)
    with pytest.raises(FencedOut):
        seed_while(old, new, savepoint)
    assert Chain(storage).load().run == "new"


def untouched(storage: Place, savepoint: Place, start: Callable[[], object], match: str) -> None:
    before = dict(storage.objects), dict(savepoint.objects)
    with pytest.raises(RestoreError, match=match):
        start()
    assert (storage.objects, savepoint.objects) == before


@pytest.mark.parametrize("claim", [False, True])
def test_what_cannot_be_started_from_is_one_clear_error_and_nothing_is_touched(claim: bool) -> None:
    savepoint, storage = saved(), Place()
    untouched(
        storage, savepoint, lambda: begin(storage, savepoint, claim=claim, key_groups=8),
        r"has 4 key groups.*asks for 8.*key_groups=4.*holdfast savepoints convert",
    )  # fmt: skip
    storage.put("precious", b"")
    untouched(storage, savepoint, lambda: begin(storage, savepoint, claim=claim), "not empty")
    storage = Place()
    grown(new_checkpoint(storage))
    untouched(
        storage, savepoint, lambda: begin(storage, savepoint, claim=claim), "exists and began with none"
    )
    storage = Place()
    half = Place("memory://half")
    half.objects = {n: d for n, d in savepoint.objects.items() if not n.startswith(names.SNAPSHOTS)}
    untouched(storage, half, lambda: begin(storage, half, claim=claim), "half-copied savepoint")
    empty = Place("memory://empty")
    untouched(storage, empty, lambda: begin(storage, empty, claim=claim), "there is no savepoint")
    running = Place("memory://running")
    grown(new_checkpoint(running))
    untouched(storage, running, lambda: begin(storage, running, claim=claim), "checkpoint, not a savepoint")


def test_a_savepoint_given_as_the_checkpoint_is_a_clear_error() -> None:
    savepoint = saved()
    with pytest.raises(RestoreError, match=r"holds a savepoint, not a checkpoint.*from_savepoint"):
        open_checkpoint(savepoint, "sums", GROUPS, ManualClock(1), identity="y")
    with pytest.raises(RestoreError, match="holds a savepoint, not a checkpoint"):
        begin(savepoint, saved())


def test_damage_in_the_savepoint_is_named_and_a_restored_one_is_taken() -> None:
    savepoint, storage = saved(), Place()
    name = next(name for name in savepoint.objects if name.startswith(names.SNAPSHOTS))
    savepoint.flip(name)
    with pytest.raises(CorruptionError, match=name):
        begin(storage, savepoint)
    assert Chain(storage).numbers() == []
    savepoint.flip(name)
    begin(storage, savepoint)
    assert Chain(storage).load().last_epoch == 9


@pytest.mark.parametrize(("stopped", "identity"), [(True, "identity-of-sums"), (False, "run-a")])
def test_a_job_that_claims_a_stopped_jobs_savepoint_goes_on_as_that_job(stopped: bool, identity: str) -> None:
    assert begin(Place(), saved(stopped=stopped), claim=True).job.identity == identity
    assert begin(Place(), saved(stopped=stopped), claim=False).job.identity == "run-a"


def test_only_one_can_claim_and_none_starts_from_what_another_will_remove() -> None:
    savepoint = saved(stopped=True)
    begin(Place("memory://first"), savepoint, claim=True)
    other, refusal = Place("memory://second"), r"claimed by job 'sums' \(checkpoint memory://first\)"
    untouched(other, savepoint, lambda: begin(other, savepoint, claim=True), refusal)
    untouched(other, savepoint, lambda: begin(other, savepoint, job="second", claim=False), refusal)


def test_a_checkpoint_that_reads_alike_on_another_machine_cannot_claim_too() -> None:
    savepoint = saved(stopped=True)
    unclaimed, first, other = Place("/data/ck"), Place("/data/ck"), Place("/data/ck")
    theirs = begin(unclaimed, savepoint)
    mine = begin(first, savepoint, claim=True)
    refusal = r"claimed by job 'sums' \(checkpoint /data/ck\), which owns it now, is another one than this,"
    untouched(other, savepoint, lambda: begin(other, savepoint, run="run-b", claim=True), refusal)
    untouched(other, savepoint, lambda: begin(other, savepoint, run="run-b"), refusal)
    advance(theirs, theirs.chain.load(), run="run-a")
    finish_claim(theirs, savepoint, 0)
    assert verify_savepoint(savepoint) == []
    advance(mine, mine.chain.load(), run="run-a")
    finish_claim(mine, savepoint, 0)
    assert savepoint.objects == {}


def test_two_that_read_alike_and_claim_at_once_are_told_apart() -> None:
    """The other claim comes between the look and the claim."""
    savepoint, first = saved(), Place("/data/ck")

    class Racing(Place):
        def put_new(self, name: str, data: bytes) -> Put:
            if name.startswith(names.CLAIMS):
                begin(first, savepoint, claim=True)
            return super().put_new(name, data)

    late = Racing("/data/ck")
    with pytest.raises(RestoreError, match="claimed by job 'sums'"):
        begin(late, savepoint, run="run-b", claim=True)
    assert late.objects == {}
    assert begin(first, savepoint, run="run-c", claim=True).chain.load().number == 1


@pytest.mark.parametrize("after", range(5))
def test_a_claim_that_was_interrupted_is_resumed_by_the_same_checkpoint_alone(
    after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At any put: before the token, between token, claim and job record, and after."""
    savepoint, storage, twin = saved(stopped=True), Place("/data/ck"), Place("/data/ck")
    puts: list[str] = []
    for place in (savepoint, storage):

        def put_new(name: str, data: bytes, put: Callable[[str, bytes], Put] = place.put_new) -> Put:
            if len(puts) == after:
                raise KeyboardInterrupt
            puts.append(name)
            return put(name, data)

        monkeypatch.setattr(place, "put_new", put_new)
    with pytest.raises(KeyboardInterrupt):
        begin(storage, savepoint, claim=True)
    monkeypatch.undo()
    if find_claim(savepoint) is not None:
        with pytest.raises(RestoreError, match="claimed by job"):
            begin(twin, savepoint, run="run-b", claim=True)
    assert begin(storage, savepoint, run="run-c", claim=True).chain.load().number == 1
    with pytest.raises(RestoreError, match="claimed by job"):
        begin(twin, savepoint, run="run-d", claim=True)


def test_a_claim_from_before_there_were_tokens_stays_with_its_job_and_place() -> None:
    savepoint, storage = saved(), Place("/data/ck")
    old = ClaimedRecord(job="sums", checkpoint="/data/ck", claimed_ms=1)
    savepoint.put_new(names.CLAIMED, seal("claimed", old))
    checkpoint = begin(storage, savepoint, claim=True)
    with pytest.raises(RestoreError, match="claimed by job"):
        begin(Place("/other/ck"), savepoint, claim=True)
    advance(checkpoint, checkpoint.chain.load(), run="run-a")
    finish_claim(checkpoint, savepoint, 0)
    assert savepoint.objects == {}


def test_a_job_that_goes_on_as_a_stopped_one_keeps_its_name() -> None:
    savepoint, storage = saved(stopped=True), Place()
    untouched(
        storage, savepoint, lambda: begin(storage, savepoint, job="other", claim=True), "name the job 'sums'"
    )
    assert begin(storage, savepoint, job="other").job.job == "other"
    assert begin(Place(), saved(stopped=False), job="other", claim=True).job.job == "other"


def test_a_claimed_savepoint_is_removed_after_the_first_commit_of_its_own_only() -> None:
    savepoint, storage = saved(), Place()
    checkpoint = begin(storage, savepoint, claim=True)
    finish_claim(checkpoint, savepoint, 0)
    assert verify_savepoint(savepoint) == []
    advance(checkpoint, checkpoint.chain.load(), run="run-a")
    finish_claim(checkpoint, savepoint, 0)
    assert savepoint.objects == {}
    finish_claim(checkpoint, savepoint, 0)
    again = begin(storage, savepoint, run="run-b", claim=True)
    assert again.chain.load().last_epoch == 10
    finish_claim(again, savepoint, 0)
    assert savepoint.objects == {}


def test_a_savepoint_that_is_unclaimed_or_claimed_by_another_is_not_removed() -> None:
    savepoint, storage = saved(), Place()
    checkpoint = begin(storage, savepoint)
    advance(checkpoint, checkpoint.chain.load(), run="run-a")
    finish_claim(checkpoint, savepoint, 0)
    begin(Place("memory://other"), savepoint, claim=True)
    finish_claim(checkpoint, savepoint, 0)
    assert verify_savepoint(savepoint) == []
    assert find_claim(savepoint) is not None


def test_a_removal_interrupted_at_any_call_is_finished_by_the_next_start() -> None:
    savepoint = saved()
    storage = Place()
    checkpoint = begin(storage, savepoint, claim=True)
    advance(checkpoint, checkpoint.chain.load(), run="run-a")
    for after in range(100):
        inner = Place(savepoint.url)
        inner.objects = dict(savepoint.objects)
        faulty = FaultyStorage(inner, [Fault(kind=FaultKind.FAIL, after=after)])
        try:
            finish_claim(checkpoint, faulty, 0)
        except HoldfastError:
            faulty.heal()
            again = begin(storage, faulty, run=f"run-{after}", claim=True)
            finish_claim(again, faulty, 0)
        assert inner.objects == {}
        if len(faulty.calls) <= after:
            return
    raise AssertionError("the faults were to run out")
