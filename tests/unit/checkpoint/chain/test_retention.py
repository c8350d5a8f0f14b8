from __future__ import annotations

from dataclasses import replace

import pytest

from holdfast.checkpoint.chain import retention
from holdfast.checkpoint.chain.commits import Chain
from holdfast.checkpoint.chain.history import read_floor
from holdfast.checkpoint.chain.pins import pin, read_pins, unpin
from holdfast.checkpoint.chain.retention import FLOORS_KEPT, Needed, Retention, retire
from holdfast.checkpoint.chain.terms import claim, newest_term
from holdfast.checkpoint.chain.view import EMPTY, CheckpointView
from holdfast.checkpoint.store import names
from holdfast.errors import DefinitionError, RestoreError
from holdfast.ids import CommitNumber
from holdfast.steps import Step
from tests.unit.checkpoint.kept import MemoryStorage, commit, draft, grow, snapshot


def lead(chain: Chain, retiring: Retention, view: CheckpointView, count: int) -> CheckpointView:
    """Commit and retire, with a snapshot at every commit so that deltas can go."""
    for _ in range(count):
        snapshots = (snapshot(view.last_epoch),) if view.last_epoch else ()
        view = commit(chain, view, draft(view, snapshots=snapshots))
        retiring.after_commit(view)
    return view


def setup(retain: int = 3, manifest_every: int = 4) -> tuple[MemoryStorage, Chain, Retention]:
    storage = MemoryStorage()
    chain = Chain(storage, retain=retain, manifest_every=manifest_every)
    return storage, chain, Retention(chain, sweep_every=1)


def test_storage_stays_bounded() -> None:
    storage, chain, retiring = setup()
    view = lead(chain, retiring, EMPTY, 30)
    held = len(storage.objects)
    lead(chain, retiring, view, 60)
    assert len(storage.objects) <= held + 2 * 4
    assert len(storage.list(names.FLOORS)) <= FLOORS_KEPT


def test_every_retained_commit_keeps_all_its_files() -> None:
    storage, chain, retiring = setup()
    view = lead(chain, retiring, EMPTY, 30)
    for number in range(view.retained_from, view.number + 1):
        assert Chain(storage).view_at(number).objects() <= storage.objects.keys()


def test_a_commit_is_given_up_in_a_record_before_anything_of_it_goes() -> None:
    storage, chain, retiring = setup(retain=1)
    view = grow(chain, EMPTY, 1)
    given_up = commit(chain, view, draft(view, snapshots=(snapshot(1),)))
    assert given_up.retained_from == 2
    retiring.after_commit(given_up)
    assert view.objects() <= storage.objects.keys()


def test_the_floor_is_durable_before_commit_records_go() -> None:
    storage, chain, retiring = setup()
    lead(chain, retiring, EMPTY, 12)
    deletes = [
        place for place, (call, name) in enumerate(storage.log) if call == "delete" and "commits/" in name
    ]
    raises = [
        place for place, (call, name) in enumerate(storage.log) if call == "put_new" and "floor/" in name
    ]
    assert deletes
    assert raises[0] < deletes[0]
    assert read_floor(storage) < Chain(storage).load().retained_from


def test_leftovers_of_lost_attempts_go_with_their_epoch() -> None:
    storage, chain, retiring = setup()
    storage.put("data/000000000002/attempt-of-a-dead-task", b"")
    storage.put("data/000000000040/attempt-in-hand", b"")
    storage.put("snapshots/000000000002/attempt-of-a-dead-task", b"")
    view = lead(chain, retiring, EMPTY, 20)
    # Snapshots are swept once, at the first sweep of a run.
    lead(chain, Retention(chain, sweep_every=1), view, 1)
    assert not any("dead-task" in name for name in storage.objects)
    assert "data/000000000040/attempt-in-hand" in storage.objects


def test_output_not_yet_published_is_kept_however_old() -> None:
    storage, chain, retiring = setup()
    view = EMPTY
    for _ in range(20):
        view = commit(chain, view, draft(view, published=0, snapshots=(snapshot(view.last_epoch or 1),)))
        retiring.after_commit(view)
    assert {f"data/{epoch:012d}/staged" for epoch in range(1, 21)} <= storage.objects.keys()


def test_plans_and_terms_go_and_the_newest_term_stays() -> None:
    storage, chain, retiring = setup()
    for epoch in range(1, 25):
        storage.put(names.plan(epoch, 1), b"")
    for run in "abcd":
        claim(storage, run, "host", 1, 0)
    view = lead(chain, retiring, EMPTY, 20)
    left = [names.number_of(entry.name) for entry in storage.list(names.PLANS)]
    replayed_from = Chain(storage).view_at(view.retained_from).last_epoch + 1
    assert left[0] is not None
    assert 2 < left[0] <= replayed_from
    assert newest_term(storage).term == 4  # type: ignore[union-attr]
    assert len(storage.list(names.TERMS)) == 2


def test_a_rewind_keeps_what_it_brought_back() -> None:
    storage, chain, retiring = setup()
    view = lead(chain, retiring, EMPTY, 12)
    view = chain.rewind(view.head, CommitNumber(view.retained_from), term=1, run="run-1").view
    for _ in range(12):
        view = commit(chain, view)
        retiring.after_commit(view)
    assert view.objects() <= storage.objects.keys()


def test_a_sweep_costs_nothing_until_enough_is_given_up() -> None:
    storage, chain, _ = setup()
    retiring = Retention(chain, sweep_every=8)
    view = lead(chain, retiring, EMPTY, 20)
    calls = []
    for _ in range(8):
        view = commit(chain, view)
        storage.log.clear()
        retiring.after_commit(view)
        calls.append(len(storage.log))
    assert calls.count(0) == 7


def test_later_sweeps_list_only_what_is_retired() -> None:
    storage, chain, retiring = setup()
    view = lead(chain, retiring, EMPTY, 20)
    view = commit(chain, view)
    storage.log.clear()
    retiring.after_commit(view)
    listed = [name for call, name in storage.log if call == "list" and name.startswith("data/")]
    assert listed == [names.data_of(Chain(storage).view_at(view.given_up_below).last_epoch)]


def test_steps_are_marked_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    marked: list[Step] = []
    monkeypatch.setattr(retention, "reached", marked.append)
    _, chain, retiring = setup()
    lead(chain, retiring, EMPTY, 12)
    assert marked.index(Step.FLOOR_RAISED) < len(marked) - 1
    assert marked[marked.index(Step.FLOOR_RAISED) + 1] is Step.RETIRED


def test_a_damaged_manifest_holds_the_floor_back() -> None:
    storage, chain, retiring = setup()
    view = grow(chain, EMPTY, 9)
    storage.flip(chain.record(4).manifest)
    outcome = retiring.after_commit(view)
    assert outcome is not None
    assert "manifests/000000000004" in outcome.held_back
    assert read_floor(storage) == 0


def test_retire_is_pure_and_spares_what_is_needed() -> None:
    needed = Needed(frozenset({"data/000000000003/shared"}), through_epoch=4)
    found = [
        "data/000000000003/shared",
        "data/000000000003/orphan",
        "data/000000000005/in-hand",
        "snapshots/000000000003/orphan",
        "snapshots/000000000004/on-its-way",
    ]
    known = ["snapshots/000000000009/rewound", "elsewhere/not-ours"]
    assert retire(needed, known, found) == [
        "data/000000000003/orphan",
        "snapshots/000000000003/orphan",
        "snapshots/000000000009/rewound",
    ]


def test_a_pin_keeps_its_commit_until_it_is_removed() -> None:
    storage, chain, retiring = setup()
    view = lead(chain, retiring, EMPTY, 10)
    pinned = chain.view_at(9)
    pin(Chain(storage), "copy-1", 9, "savepoint", 0)
    view = lead(chain, retiring, view, 30)
    assert pinned.objects() <= storage.objects.keys()
    assert Chain(storage).view_at(9) == pinned
    unpin(storage, ["copy-1"])
    view = lead(chain, retiring, view, 3)
    assert not pinned.objects() <= storage.objects.keys()


def test_a_commit_given_up_cannot_be_pinned() -> None:
    storage, chain, _ = setup()
    grow(chain, EMPTY, 10)
    with pytest.raises(RestoreError, match="retained: 8 to 10"):
        pin(Chain(storage), "late", 7, "savepoint", 0)
    assert read_pins(storage).records == ()


def test_a_pins_name_is_its_own() -> None:
    _, chain, _ = setup()
    grow(chain, EMPTY, 3)
    pin(chain, "copy", 2, "savepoint", 0)
    with pytest.raises(RestoreError, match="exists already"):
        pin(chain, "copy", 3, "standby", 0)
    with pytest.raises(DefinitionError, match="cannot name a pin"):
        pin(chain, "../escape", 3, "standby", 0)


def test_a_damaged_pin_holds_everything_back_and_is_named() -> None:
    storage, chain, retiring = setup()
    view = grow(chain, EMPTY, 10)
    pin(chain, "copy", 9, "savepoint", 0)
    storage.flip(names.pin("copy"))
    before = set(storage.objects)
    outcome = retiring.after_commit(view)
    assert outcome is not None
    assert "pins/copy" in outcome.held_back
    assert storage.objects.keys() == before


def test_a_superseded_leader_retires_nothing_that_is_needed() -> None:
    storage, chain, retiring = setup()
    stale = lead(chain, retiring, EMPTY, 10)
    newer = Chain(storage, retain=3, manifest_every=4)
    view = lead(newer, Retention(newer, sweep_every=1), newer.load(), 20)
    retiring.after_commit(replace(stale, given_up_below=stale.number))
    for number in range(view.retained_from, view.number + 1):
        assert Chain(storage).view_at(number).objects() <= storage.objects.keys()


def test_a_snapshot_that_a_commit_after_the_head_has_named_is_kept() -> None:
    """Members of a set of replicas take snapshots that they name late, and sweep while others commit."""
    storage, chain, _ = setup()
    slow = grow(chain, EMPTY, 8)
    late = snapshot(2)
    commit(Chain(storage, retain=3, manifest_every=4), slow, draft(slow, snapshots=(late,)))
    unnamed = snapshot(3)
    storage.put(unnamed.object, b"x")
    Retention(Chain(storage, retain=3, manifest_every=4), led_by_other=True).after_commit(slow)
    assert {late.object, unnamed.object} <= storage.objects.keys()
    assert names.commit(1) not in storage.objects, "the sweep took place"


def test_snapshots_of_members_go_when_a_newer_one_is_named_and_that_is_kept_to() -> None:
    """Of the members of a set of replicas some take snapshots that no commit ever names."""
    storage, chain, _ = setup()
    sweeping = Retention(chain, sweep_every=1, by_member=True)
    view = grow(chain, EMPTY, 4)
    sweeping.after_commit(view)
    left, in_hand = snapshot(4, by="2"), snapshot(9, by="2")
    for file in (left, in_hand):
        storage.put(file.object, b"x")
    for _ in range(4):
        view = commit(chain, view, draft(view))
        sweeping.after_commit(view)
    assert left.object in storage.objects, "it may be named yet: there is no newer one"
    view = commit(chain, view, draft(view, snapshots=(snapshot(8),)))
    sweeping.after_commit(view)
    assert left.object in storage.objects, "commits without the newer one can be gone back to"
    for _ in range(4):
        view = commit(chain, view, draft(view))
        sweeping.after_commit(view)
    assert left.object not in storage.objects
    assert in_hand.object in storage.objects
