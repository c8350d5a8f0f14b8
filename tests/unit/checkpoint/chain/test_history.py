from __future__ import annotations

import pickle

import pytest

from holdfast.checkpoint.chain.commits import Chain, Committed
from holdfast.checkpoint.chain.history import (
    DamagedChain,
    History,
    NewestCommit,
    brings_manifest,
    newest_intact,
    verify,
)
from holdfast.checkpoint.chain.view import EMPTY, CheckpointView
from holdfast.checkpoint.store import names
from holdfast.checkpoint.store.envelope import seal
from holdfast.checkpoint.store.records import FloorRecord
from holdfast.errors import CorruptionError
from holdfast.storage.checksums import checksum
from holdfast.testing.clocks import ManualClock
from tests.unit.checkpoint.kept import SINK, MemoryStorage, commit, draft, grow


def damaged(storage: MemoryStorage) -> DamagedChain:
    with pytest.raises(DamagedChain) as caught:
        Chain(storage).load()
    return caught.value


def manifest_of(storage: MemoryStorage, number: int) -> str:
    record = Chain(storage).record(number)
    assert brings_manifest(record)
    return record.manifest


def test_a_damaged_head_is_gone_past_and_the_chain_stays_one() -> None:
    storage = MemoryStorage()
    grow(Chain(storage), EMPTY, 5)
    storage.flip(names.commit(5))
    damage = damaged(storage)
    assert damage.head.number == 5
    assert damage.head.checksum == checksum(storage.objects[names.commit(5)])
    assert damage.fallback == 4
    assert "commits/000000000005" in str(damage)

    chain = Chain(storage)
    outcome = chain.rewind(damage.head, damage.fallback, term=2, run="new")
    assert isinstance(outcome, Committed)
    assert (outcome.view.number, outcome.view.last_epoch) == (6, 4)
    head = commit(chain, outcome.view, draft(outcome.view, term=2, run="new"))
    assert Chain(storage).load() == head


def test_a_missing_record_in_the_middle_is_damage() -> None:
    storage = MemoryStorage()
    grow(Chain(storage), EMPTY, 5)
    storage.delete([names.commit(3)])
    damage = damaged(storage)
    assert (damage.head.number, damage.fallback) == (5, 2)
    assert damage.head.published_through == {SINK: 4}, "what sinks have shown is known from readable records"
    assert "commits/000000000003 is missing" in str(damage)


def test_damage_survives_pickling() -> None:
    storage = MemoryStorage()
    grow(Chain(storage), EMPTY, 3)
    storage.flip(names.commit(3))
    damage = damaged(storage)
    again = pickle.loads(pickle.dumps(damage))
    assert (again.head, again.fallback, str(again)) == (damage.head, damage.fallback, str(damage))


def test_a_damaged_manifest_is_folded_around() -> None:
    storage = MemoryStorage()
    view = grow(Chain(storage, manifest_every=4), EMPTY, 10)
    storage.flip(manifest_of(storage, 8))
    assert Chain(storage).load() == view
    assert "manifests/000000000008" in verify(Chain(storage))[0]


def test_a_damaged_rewind_manifest_is_folded_around() -> None:
    storage = MemoryStorage()
    chain = Chain(storage)
    view = grow(chain, EMPTY, 5)
    rewound = chain.rewind(view.head, chain.numbers()[2], term=1, run="run-1").view
    storage.flip(manifest_of(storage, 6))
    loaded = Chain(storage).load()
    assert (loaded.number, loaded.last_epoch, loaded.deltas) == (6, 3, rewound.deltas)
    assert loaded.published_through == rewound.published_through


def test_a_damaged_manifest_with_nothing_below_is_an_error() -> None:
    storage = MemoryStorage()
    grow(Chain(storage, manifest_every=4), EMPTY, 6)
    storage.flip(manifest_of(storage, 4))
    storage.put(names.floor(3), seal("floor", FloorRecord(floor=3, term=1, run="r")))
    storage.delete([names.commit(number) for number in (1, 2, 3)])
    damage = damaged(storage)
    assert damage.fallback == 0
    assert "manifests/000000000004" in str(damage)
    assert "restore the storage from a copy" in str(damage)


@pytest.mark.parametrize("trace", ["floor", "manifest"])
def test_a_checkpoint_that_lost_its_commits_never_starts_empty(trace: str) -> None:
    storage = MemoryStorage()
    grow(Chain(storage, manifest_every=4), EMPTY, 5)
    storage.delete([names.commit(number) for number in range(1, 6)])
    if trace == "floor":
        storage.delete([entry.name for entry in storage.list(names.MANIFESTS)])
        storage.put(names.floor(3), b"")
    with pytest.raises(CorruptionError, match="they were lost"):
        Chain(storage).load()


def test_a_record_of_another_history_is_refused() -> None:
    storage, other = MemoryStorage(), MemoryStorage()
    grow(Chain(storage), EMPTY, 5)
    view = commit(Chain(other), EMPTY, draft(EMPTY, run="another"))
    grow(Chain(other), view, 0)
    second = Chain(other)
    commit(second, view, draft(view, run="another"))
    storage.put(names.commit(2), other.objects[names.commit(2)])
    assert "does not continue the chain" in str(damaged(storage))


def test_verify_names_every_problem() -> None:
    storage = MemoryStorage()
    grow(Chain(storage, manifest_every=4), EMPTY, 6)
    assert verify(Chain(storage)) == []
    storage.flip(names.commit(2))
    storage.flip(manifest_of(storage, 4))
    storage.delete([names.commit(5)])
    problems = " | ".join(verify(Chain(storage)))
    assert all(name in problems for name in ("commits/000000000002", "manifests/", "commits/000000000005"))


def test_the_newest_commit_whose_files_verify_is_found() -> None:
    storage = MemoryStorage()
    chain = Chain(storage, retain=5)
    head = grow(chain, EMPTY, 8)
    storage.delete(["data/000000000006/delta-totals-0"])
    asked: list[int] = []

    def intact(view: CheckpointView) -> bool:
        asked.append(view.number)
        return view.objects() <= storage.objects.keys()

    found = newest_intact(chain, head.head, intact)
    assert found is not None
    assert (found.number, asked) == (5, [8, 7, 6, 5])


def test_no_commit_below_the_retained_ones_is_offered() -> None:
    chain = Chain(MemoryStorage(), retain=3)
    head = grow(chain, EMPTY, 8)
    asked: list[int] = []
    assert newest_intact(chain, head.head, lambda view: bool(asked.append(view.number))) is None
    assert asked == [8, 7, 6]


@pytest.mark.parametrize("manifest_every", [1, 64])
@pytest.mark.parametrize("since", [0, 1, 2])
def test_a_commit_in_the_place_of_one_that_was_lost_is_not_taken_for_that(
    manifest_every: int, since: int
) -> None:
    """What reads a chain again and again has read the lost one; `since`: commits it has not seen."""
    storage = MemoryStorage()
    before = grow(Chain(storage), EMPTY, 3)
    history = History(storage)
    newest = NewestCommit(history, ManualClock(), list_seconds=5)
    lost = newest.load()
    assert lost == before
    storage.delete([names.commit(3)])
    chain = Chain(storage, manifest_every=manifest_every)
    other = commit(chain, chain.load(), draft(chain.load(), term=2, run="other"))
    head = other
    for _ in range(since):
        head = commit(chain, head, draft(head, term=2, run="other"))
    assert newest.load() == head
    assert [history.view_at(number) for number in range(head.number, 1, -1)] == [
        chain.view_at(number) for number in range(head.number, 1, -1)
    ]


def test_the_newest_commit_that_is_lost_is_not_remembered() -> None:
    storage = MemoryStorage()
    grow(Chain(storage), EMPTY, 3)
    newest = NewestCommit(History(storage), ManualClock(), list_seconds=5)
    assert newest.load().number == 3
    storage.delete([names.commit(3)])
    assert newest.load().number == 2
