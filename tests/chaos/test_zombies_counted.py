"""The account of a woken leader's writes is itself judged: each fate is told, and a wrong one is found."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.checkpoint.chain.commits import Chain
from holdfast.checkpoint.chain.view import EMPTY
from holdfast.checkpoint.store import names
from holdfast.checkpoint.store.records import CommitRecord, Extent, StagedFile
from holdfast.storage.local_directory import LocalStorage
from tests.chaos.recorded_storage import RecordedStorage, Write, read_writes
from tests.chaos.zombies import Account, Fate, account_of, waking_of

PLACE = "checkpoint"
ACCOUNT = Account(
    place=PLACE,
    terms={names.commit(1): 1, names.commit(2): 1, names.commit(3): 2},
    named=frozenset({"data/000000000002/a", names.plan(1, 1), names.plan(2, 1)}),
    spent=frozenset({names.plan(1, 1)}),
    last_epoch=3,
)


def write(name: str, outcome: str = "created", *, call: str = "put_new", place: str = PLACE) -> Write:
    return Write(at=0.0, place=place, call=call, name=name, outcome=outcome)


@pytest.mark.parametrize(
    ("done", "fate"),
    [
        (write(names.commit(3), "exists"), Fate.REFUSED),
        (write(names.commit(4), "StorageError"), Fate.REFUSED),
        (write(names.commit(2)), Fate.ADOPTED),
        (write(names.commit(3)), Fate.CONTRADICTS),
        (write(names.commit(4)), Fate.CONTRADICTS),
        (write("data/000000000002/a", "done", call="put"), Fate.ADOPTED),
        (write("data/000000000002/b", "done", call="put"), Fate.ORPHANED),
        (write("snapshots/000000000002/s", "done", call="put_file"), Fate.ORPHANED),
        (write(names.plan(2, 1)), Fate.ADOPTED),
        (write(names.plan(2, 2)), Fate.ORPHANED),
        (write("data/000000000002/b", "done", call="delete"), Fate.REMOVED),
        (write("data/000000000002/a", "done", call="delete"), Fate.CONTRADICTS),
        (write(names.commit(1), "done", call="delete"), Fate.CONTRADICTS),
        (write(names.plan(1, 1), "done", call="delete"), Fate.REMOVED),
        (write(names.plan(2, 1), "done", call="delete"), Fate.CONTRADICTS),
        (write(f"{names.FAILURES}{1:012d}"), Fate.NOTED),
        (write("out-000000000003.parquet", place="sink"), Fate.ADOPTED),
        (write("out-000000000003.parquet", "exists", place="sink"), Fate.REFUSED),
        (write("out-000000000004.parquet", place="sink"), Fate.CONTRADICTS),
        (write("out-000000000003.parquet", "done", call="put", place="sink"), Fate.CONTRADICTS),
    ],
)
def test_each_write_has_its_fate(done: Write, fate: Fate) -> None:
    assert ACCOUNT.fate(done, term=1) is fate


def test_a_write_that_nobody_has_thought_of_is_not_passed_over() -> None:
    with pytest.raises(AssertionError, match=r"whether .* matters is not known"):
        ACCOUNT.fate(write(names.floor(1)), term=1)


def test_the_writes_of_a_real_chain_are_told_apart(tmp_path: Path) -> None:
    """Two leaders over one storage: the first is stopped after its second commit, and wakes up late."""
    store = LocalStorage(tmp_path / "ck")
    first = RecordedStorage(store, tmp_path / "first.writes")
    first.put_new(names.term(1), b"")
    chain = Chain(first)
    base = EMPTY
    for epoch in (1, 2):
        first.put(f"data/{epoch:012d}/first", b"rows")
        base = chain.commit(base, record(epoch, "first", term=1)).view
    first.put("data/000000000003/first", b"rows")
    stopped = read_writes(tmp_path / "first.writes")[-1].at
    Chain(store).commit(Chain(store).load(), record(3, "second", term=2))
    first.put("data/000000000003/late", b"rows")
    assert first.put_new(names.commit(3), b"late").value == "exists"
    first.put_new(names.term(3), b"")
    writes = read_writes(tmp_path / "first.writes")
    woken = next(each.at for each in writes if each.name.endswith("late"))

    waking = waking_of("first", account_of(store), writes, stopped, woken)

    assert str(waking) == (
        "first, term 1: before adopted 4 (commits 2, data 2), orphaned 1 (data 1), noted 1 (terms 1); "
        "after waking refused 1 (commits 1), orphaned 1 (data 1)"
    )
    assert waking.count(Fate.REFUSED, names.COMMITS) == 1
    assert not waking.contradictions()
    assert not waking.late()


def test_a_late_commit_that_the_chain_has_is_adopted_and_told(tmp_path: Path) -> None:
    store = LocalStorage(tmp_path / "ck")
    first = RecordedStorage(store, tmp_path / "first.writes")
    first.put_new(names.term(1), b"")
    claimed = read_writes(tmp_path / "first.writes")[-1].at
    Chain(first).commit(EMPTY, record(1, "first", term=1))
    writes = read_writes(tmp_path / "first.writes")
    waking = waking_of("first", account_of(store), writes, claimed, writes[-1].at)
    assert [each.name for each in waking.late()] == [names.commit(1)]


def record(epoch: int, run: str, term: int) -> CommitRecord:
    extent = Extent(object=f"data/{epoch:012d}/{run}", offset=0, length=4, checksum="")
    return CommitRecord(
        term=term, run=run, first_epoch=epoch, last_epoch=epoch, attempts={str(epoch): 1}, clock_ms=1,
        parallelism=1, fingerprint="", positions={},
        staged=(StagedFile(stream="s", epoch=epoch, part=0, extent=extent, rows=1),),
    )  # fmt: skip
