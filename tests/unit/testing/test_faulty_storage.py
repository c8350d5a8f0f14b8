from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from holdfast.errors import StorageError, UnknownOutcome
from holdfast.storage.contract import Put
from holdfast.storage.local_directory import LocalStorage
from holdfast.testing.clocks import ManualClock
from holdfast.testing.faulty_storage import Fault, FaultKind, FaultyStorage


@pytest.fixture
def inner(tmp_path: Path) -> LocalStorage:
    return LocalStorage(tmp_path / "store", fsync=False)


def test_a_fault_hits_the_calls_it_names_and_no_others(inner: LocalStorage) -> None:
    storage = FaultyStorage(
        inner, [Fault(kind=FaultKind.FAIL, operation="put_new", name="commits/*", after=1, times=2)]
    )
    storage.put_new("commits/1", b"")
    storage.put_new("plans/1", b"")
    for _ in range(2):
        with pytest.raises(StorageError, match=r"commits/2.*nothing was written"):
            storage.put_new("commits/2", b"")
    assert inner.size("commits/2") is None
    assert storage.put_new("commits/2", b"") is Put.CREATED
    assert storage.calls.count(("put_new", "commits/2")) == 3


@pytest.mark.parametrize(
    ("kind", "written"), [(FaultKind.LOSE_REQUEST, False), (FaultKind.LOSE_ANSWER, True)]
)
def test_an_unknown_outcome_may_be_either(inner: LocalStorage, kind: FaultKind, written: bool) -> None:
    storage = FaultyStorage(inner, [Fault(kind=kind)])
    with pytest.raises(UnknownOutcome):
        storage.put_new("commits/1", b"1")
    assert (inner.size("commits/1") is not None) == written
    assert storage.put_new("commits/1", b"1") is (Put.EXISTS if written else Put.CREATED)


def test_an_unanswered_read_is_a_plain_error(inner: LocalStorage) -> None:
    inner.put("a", b"1")
    storage = FaultyStorage(inner, [Fault(kind=FaultKind.LOSE_ANSWER, operation="get")])
    with pytest.raises(StorageError):
        storage.get("a")


def test_a_delay_takes_time_of_the_given_clock(inner: LocalStorage) -> None:
    clock = ManualClock()
    storage = FaultyStorage(inner, [Fault(kind=FaultKind.DELAY, seconds=30, times=None)], clock=clock)
    storage.put("a", b"1")
    assert storage.get("a") == b"1"
    assert clock.monotonic() == 60


def test_damage_on_read_leaves_the_object_whole(inner: LocalStorage) -> None:
    inner.put("a", b"0123456789")
    storage = FaultyStorage(inner, [Fault(kind=FaultKind.TRUNCATE, operation="get")])
    assert storage.get("a") == b"01234"
    storage.add(Fault(kind=FaultKind.FLIP, operation="get"))
    assert bits_changed(storage.get("a"), b"0123456789") == 1
    assert storage.get("a") == b"0123456789"


def test_damage_on_write_stays(inner: LocalStorage, tmp_path: Path) -> None:
    storage = FaultyStorage(inner, [Fault(kind=FaultKind.FLIP, operation="put*", times=None)])
    (tmp_path / "made").write_bytes(b"0123456789")
    storage.put_new("new", b"0123456789")
    storage.put("put", b"0123456789")
    storage.put_file("file", tmp_path / "made")
    storage.put_stream("stream", lambda: iter([b"01234", b"56789"]))
    for name in ("new", "put", "file", "stream"):
        assert bits_changed(inner.get(name), b"0123456789") == 1


def test_damage_at_rest_stays_after_healing(inner: LocalStorage) -> None:
    storage = FaultyStorage(inner)
    storage.put("a", b"0123456789")
    place = storage.flip_at_rest("a")
    storage.heal()
    assert storage.get("a")[place] != b"0123456789"[place]
    storage.truncate_at_rest("a", 3)
    assert storage.size("a") == 3


def test_the_same_seed_gives_the_same_faults(tmp_path: Path) -> None:
    def outcomes(seed: int, place: str) -> list[bool]:
        fault = Fault(kind=FaultKind.FAIL, chance=0.3, times=None)
        storage = FaultyStorage(LocalStorage(tmp_path / place, fsync=False), [fault], seed=seed)
        return [fails(storage, f"{number}") for number in range(60)]

    first = outcomes(1, "a")
    assert first == outcomes(1, "b")
    assert first != outcomes(2, "c")
    assert 5 < sum(first) < 35


def test_the_manual_clock_moves_only_when_told() -> None:
    clock = ManualClock(now_ms=1_000)
    clock.sleep(1.5)
    clock.advance(timedelta(milliseconds=500))
    assert (clock.now_ms(), clock.monotonic()) == (3_000, 2.0)
    clock.jump(timedelta(seconds=-2))
    assert (clock.now_ms(), clock.monotonic()) == (1_000, 2.0)


def fails(storage: FaultyStorage, name: str) -> bool:
    try:
        storage.put(name, b"")
    except StorageError:
        return True
    return False


def bits_changed(one: bytes, other: bytes) -> int:
    return sum((a ^ b).bit_count() for a, b in zip(one, other, strict=True))
