"""One key's committed state, while commits go on."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest

from holdfast.checkpoint.store import names
from holdfast.errors import CorruptionError, DefinitionError, ObjectMissing, RestoreError
from holdfast.inspect import point_query
from holdfast.inspect.point_query import StateReader
from holdfast.storage.local_directory import LocalStorage
from holdfast.testing.clocks import ManualClock
from tests.unit.inspect.stored import Keys, MadeCheckpoint

STATES = ("total", "tags", "seen", "user")
LONG = "k" * 600


def told(number: int) -> dict[str, Any]:
    return {"total": number, "tags": [f"t{number}"], "seen": {"p": number, LONG: 1}, "user": None}


def filled(tmp_path: Path, **options: Any) -> MadeCheckpoint:
    made = MadeCheckpoint(tmp_path, **options)
    made.commit({(f"u{i}", i): told(i) for i in range(40)} | {(LONG, 1): told(7)}, snapshots=True)
    made.commit({(f"u{i}", i): {"total": -i, "seen": {"q": i}} for i in range(0, 40, 3)})
    made.commit({("u6", 6): {}, ("u9", 9): {"tags": ["x", "y"]}})
    return made


def expected(values: dict[str, Any]) -> dict[str, Any]:
    return {state: values.get(state) for state in STATES}


def check_all(reader: StateReader, made: MadeCheckpoint, keys: Keys) -> None:
    for key in keys:
        answer = reader.get("totals", {"user": key[0], "day": key[1]})
        assert answer.values == expected(made.model.get(key, {})), key
        assert answer.found == (key in made.model)
        assert (answer.commit, answer.epoch) == (made.view.number, made.view.last_epoch)


@pytest.mark.parametrize("backend", ["lmdb", "rocksdb"])
@pytest.mark.parametrize("cache_bytes", [0, 1 << 20])
def test_every_key_is_answered_as_the_newest_commit_has_it(
    tmp_path: Path, backend: str, cache_bytes: int
) -> None:
    made = filled(tmp_path, backend=backend)
    everybody = {**made.model, ("u6", 6): {}, ("nobody", 1): {}}
    with StateReader(made.url, cache_bytes=cache_bytes) as reader:
        check_all(reader, made, everybody)
        made.commit({("u1", 1): {"total": 100}, ("new", 5): {"tags": ["a"]}})
        check_all(reader, made, {**everybody, ("new", 5): {}})
        made.rescale(3)
        made.commit({("u2", 2): {"total": 200}}, snapshots=True)
        check_all(reader, made, {**everybody, ("new", 5): {}})


@pytest.mark.parametrize("backend", ["lmdb", "rocksdb"])
def test_copies_of_snapshots_from_a_bucket_do_not_pile_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    monkeypatch.setattr(LocalStorage, "local_path", lambda self, name: None)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()
    made = filled(tmp_path, backend=backend)
    with StateReader(made.url) as reader:
        for number in range(3):
            made.commit({("u1", 1): {"total": number}}, snapshots=True)
            check_all(reader, made, made.model)
            assert [path for path in (tmp_path / "scratch").rglob("*") if path.is_file()] == []


def test_a_list_of_a_hot_key_is_put_together_from_many_deltas(tmp_path: Path) -> None:
    made = filled(tmp_path)
    with StateReader(made.url) as reader:
        for length in (1, 5, 2, 0, 3):
            made.commit({("hot", 0): {"tags": [str(n) for n in range(length)], "total": 1}})
            found = reader.get("totals", {"user": "hot", "day": 0}).values["tags"]
            assert (found or []) == [str(n) for n in range(length)]


def test_a_reader_follows_without_listing_until_it_is_time(tmp_path: Path) -> None:
    made = filled(tmp_path)
    clock = ManualClock()
    reader = StateReader(made.url, clock=clock)
    listed: list[str] = []
    storage = reader._stored.storage
    plain = storage.list

    def counting(prefix: str) -> Any:
        listed.append(prefix)
        return plain(prefix)

    storage.list = counting  # type: ignore[method-assign]
    try:
        for _ in range(3):
            assert reader.get("totals", {"user": "u1", "day": 1}).commit == 3
        assert names.COMMITS not in listed
        made.commit({("u1", 1): {"total": 5}})
        assert reader.get("totals", {"user": "u1", "day": 1}).commit == 4
        assert listed.count(names.COMMITS) == 1
    finally:
        storage.list = plain  # type: ignore[method-assign]
        reader.close()


def test_a_query_starts_over_when_its_files_were_retired_under_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = filled(tmp_path)
    reader = StateReader(made.url)
    plain, turns = point_query.open_delta, []

    def retired_once(data: bytes, name: str) -> Any:
        turns.append(name)
        if len(turns) == 1:
            made.commit({("u1", 1): {"total": 5}})
            raise ObjectMissing(f"{name} is not there")
        return plain(data, name)

    monkeypatch.setattr(point_query, "open_delta", retired_once)
    assert reader.get("totals", {"user": "u1", "day": 1}).values["total"] == 5
    reader.close()


def test_a_file_that_is_lost_is_an_error_and_not_an_answer(tmp_path: Path) -> None:
    made = filled(tmp_path)
    made.storage.delete([entry.name for entry in made.storage.list("data/")])
    with StateReader(made.url) as reader, pytest.raises(ObjectMissing):
        reader.get("totals", {"user": "u1", "day": 1})


def test_a_damaged_snapshot_is_found_before_it_is_read(tmp_path: Path) -> None:
    made = filled(tmp_path)
    for entry in made.storage.list("snapshots/"):
        path = made.storage.local_path(entry.name)
        assert path is not None
        data = bytearray(path.read_bytes())
        data[-5000] ^= 1
        path.unlink()
        path.write_bytes(bytes(data))
    with StateReader(made.url) as reader, pytest.raises(CorruptionError, match="snapshots/"):
        reader.get("totals", {"user": "u1", "day": 1})


def test_a_key_that_cannot_be_one_is_refused(tmp_path: Path) -> None:
    made = filled(tmp_path)
    with StateReader(made.url) as reader:
        with pytest.raises(DefinitionError, match="give a value for each of: user string, day long"):
            reader.get("totals", "ann")
        with pytest.raises(DefinitionError, match="'day' of operator 'totals' is long, not 'x'"):
            reader.get("totals", {"user": "ann", "day": "x"})
        with pytest.raises(RestoreError, match="'totals'"):
            reader.get("other", {"user": "ann", "day": 1})


def test_the_cache_keeps_what_was_used_last(tmp_path: Path) -> None:
    cache = point_query._Cache(10)
    cache.put("a", 1, 4)
    cache.put("b", 2, 4)
    assert cache.get("a") == 1
    cache.put("c", 3, 4)
    assert cache.get("b") is None
    assert (cache.get("a"), cache.get("c")) == (1, 3)
    cache.put("a", 9, 6)
    assert cache.get("a") == 9
    assert cache._used <= 10
