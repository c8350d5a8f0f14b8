"""What every storage promises, run for each kind. What only local storage promises is in unit/storage."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from holdfast.errors import CorruptionError, DefinitionError, ObjectMissing
from holdfast.storage.contract import Entry, Put, Storage
from holdfast.storage.local_directory import LocalStorage
from holdfast.storage.object_store import PART_BYTES, ObjectStorage
from holdfast.storage.urls import open_storage
from holdfast.testing.faulty_storage import FaultyStorage
from tests.services.object_store import ObjectStore
from tests.unit.storage.page_cache import PageCacheStorage

KINDS = ("local", "s3", "faulty-without-faults", "page-cache")

RACER = """
import sys
from holdfast.storage.urls import open_storage
storage = open_storage(sys.argv[1])
sys.stdin.readline()
for number in range(int(sys.argv[3])):
    print(storage.put_new(f"race/{number}", sys.argv[2].encode()).name, flush=True)
"""


@pytest.fixture(scope="session")
def bucket() -> Iterator[str]:
    """An S3 server of our own with one bucket; its place is in the environment."""
    with ObjectStore() as store, pytest.MonkeyPatch.context() as environment:
        for name, value in store.environment(store.port).items():
            environment.setenv(name, value)
        yield store.url


@pytest.fixture(params=KINDS)
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    match request.param:
        case "local":
            return LocalStorage(tmp_path / "store")
        case "s3":
            return ObjectStorage(f"{request.getfixturevalue('bucket')}/{uuid.uuid4().hex}/deep er")
        case "faulty-without-faults":
            return FaultyStorage(LocalStorage(tmp_path / "store"))
        case _:
            return PageCacheStorage(tmp_path / "store")


def test_put_new_creates_once_and_keeps_the_first_bytes(storage: Storage) -> None:
    assert storage.put_new("commits/000000000001", b"first") is Put.CREATED
    assert storage.put_new("commits/000000000001", b"second") is Put.EXISTS
    assert storage.get("commits/000000000001") == b"first"


def test_an_empty_object_also_takes_its_name(storage: Storage) -> None:
    assert storage.put_new("floor/1", b"") is Put.CREATED
    assert storage.put_new("floor/1", b"late") is Put.EXISTS
    assert (storage.get("floor/1"), storage.size("floor/1")) == (b"", 0)


def test_put_replaces(storage: Storage) -> None:
    storage.put("a/b", b"old and long")
    storage.put("a/b", b"new")
    assert storage.get("a/b") == b"new"


def test_a_name_freed_by_delete_can_be_taken_again(storage: Storage) -> None:
    storage.put_new("a/b", b"1")
    storage.delete(["a/b"])
    assert storage.put_new("a/b", b"2") is Put.CREATED
    assert storage.get("a/b") == b"2"


def test_put_file_consumes_the_file(storage: Storage, tmp_path: Path) -> None:
    made = tmp_path / "made"
    made.write_bytes(b"snapshot")
    storage.put_file("snapshots/1", made)
    assert storage.get("snapshots/1") == b"snapshot"
    assert not made.exists()


def test_a_file_larger_than_one_part_arrives_whole(storage: Storage, tmp_path: Path) -> None:
    made, data = tmp_path / "made", os.urandom(PART_BYTES + 12_345)
    made.write_bytes(data)
    storage.put_file("snapshots/big", made)
    assert storage.get("snapshots/big") == data


def test_put_stream_joins_the_parts_and_replaces(storage: Storage) -> None:
    storage.put("snapshots/1", b"old and long")
    storage.put_stream("snapshots/1", lambda: iter([b"one ", b"", b"two"]))
    assert storage.get("snapshots/1") == b"one two"
    storage.put_stream("snapshots/1", lambda: iter([]))
    assert storage.get("snapshots/1") == b""


def test_a_stream_larger_than_one_part_arrives_whole(storage: Storage) -> None:
    parts = [os.urandom(PART_BYTES - 1_000), os.urandom(3), os.urandom(PART_BYTES)]
    storage.put_stream("snapshots/big", lambda: iter(parts))
    assert storage.get("snapshots/big") == b"".join(parts)


def test_a_stream_may_be_read_from_the_storage_that_it_is_written_to(storage: Storage) -> None:
    storage.put("from", os.urandom(PART_BYTES + 100))

    def parts() -> Iterator[bytes]:
        for offset in range(0, PART_BYTES + 100, 1 << 20):
            yield storage.get("from", offset, 1 << 20)

    storage.put_stream("to", parts)
    assert storage.get("to") == storage.get("from")


@pytest.mark.parametrize("size", [10, 2 * PART_BYTES])
def test_a_stream_that_fails_raises_its_error_and_writes_nothing(storage: Storage, size: int) -> None:
    def parts() -> Iterator[bytes]:
        yield os.urandom(size)
        raise CorruptionError("the second part is damaged")

    storage.put("a", b"old")
    for name in ("a", "b"):
        with pytest.raises(CorruptionError, match="second part"):
            storage.put_stream(name, parts)
    assert storage.list("") == [Entry("a", 3)]
    assert storage.get("a") == b"old"


@pytest.mark.parametrize(
    ("offset", "length", "expected"),
    [
        (0, None, b"0123456789"),
        (4, None, b"456789"),
        (4, 3, b"456"),
        (0, 0, b""),
        (8, 100, b"89"),
        (10, 5, b""),
        (99, 5, b""),
        (99, None, b""),
    ],
)
def test_get_reads_ranges_and_stops_at_the_end(
    storage: Storage, offset: int, length: int | None, expected: bytes
) -> None:
    storage.put("a", b"0123456789")
    assert storage.get("a", offset, length) == expected


@pytest.mark.parametrize("length", [None, 0, 3])
def test_a_missing_object_is_named_in_the_error(storage: Storage, length: int | None) -> None:
    storage.put("data/x/y", b"1")
    for name in ("data/gone", "data/x", "data/x/y/z"):
        with pytest.raises(ObjectMissing, match=name):
            storage.get(name, 0, length)
        assert storage.size(name) is None


def test_list_is_recursive_sorted_and_by_text_prefix(storage: Storage) -> None:
    for name in ("b/2", "b/10", "b/1/x", "bb", "a", "c/1"):
        storage.put(name, name.encode())
    assert storage.list("") == [Entry(name, len(name)) for name in ("a", "b/1/x", "b/10", "b/2", "bb", "c/1")]
    assert [entry.name for entry in storage.list("b")] == ["b/1/x", "b/10", "b/2", "bb"]
    assert [entry.name for entry in storage.list("b/")] == ["b/1/x", "b/10", "b/2"]
    assert [entry.name for entry in storage.list("b/1")] == ["b/1/x", "b/10"]
    assert storage.list("nothing/here") == []


def test_an_untouched_storage_lists_nothing_and_deletes_nothing(storage: Storage) -> None:
    assert storage.list("") == []
    storage.delete(["never/was"])
    storage.delete([])


def test_delete_removes_just_the_named(storage: Storage) -> None:
    for name in ("d/1", "d/2", "d/deep/3"):
        storage.put(name, b"x")
    storage.delete(iter(["d/1", "d/deep/3", "d/gone"]))
    assert [entry.name for entry in storage.list("")] == ["d/2"]


@pytest.mark.parametrize(
    "name", ["", "/etc/passwd", "../x", "a/../../x", "a//b", "a/", "./a", ".tmp/x", "a\nb", "a\\b", "x" * 901]
)
def test_a_name_that_could_leave_the_storage_is_refused(storage: Storage, name: str) -> None:
    for call in (
        lambda: storage.put_new(name, b""),
        lambda: storage.put(name, b""),
        lambda: storage.get(name),
        lambda: storage.size(name),
        lambda: storage.delete([name]),
        lambda: storage.local_path(name),
    ):
        with pytest.raises(DefinitionError, match="is not an object name"):
            call()


@pytest.mark.parametrize(
    "name", ["out put/ünï-1.parquet", "a%20b", "x#y?z=1&w", "uid:[0]{1}~*.json", "..a/b.."]
)
def test_unusual_names_come_back_as_they_were(storage: Storage, name: str) -> None:
    storage.put_new(name, b"1")
    assert storage.list("") == [Entry(name, 1)]
    assert storage.get(name) == b"1"


def test_of_many_threads_exactly_one_creates(storage: Storage) -> None:
    threads, rounds = 16, 5
    for number in range(rounds):
        start = Barrier(threads)

        def put(writer: int, name: str = f"race/{number}", start: Barrier = start) -> Put:
            start.wait()
            return storage.put_new(name, str(writer).encode())

        with ThreadPoolExecutor(threads) as pool:
            outcomes = list(pool.map(put, range(threads)))
        assert outcomes.count(Put.CREATED) == 1
        assert storage.get(f"race/{number}") == str(outcomes.index(Put.CREATED)).encode()


def test_of_several_processes_exactly_one_creates(storage: Storage) -> None:
    rounds = 20
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACER, storage.url, name, str(rounds)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        for name in "abcd"
    ]
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("go\n")
        racer.stdin.flush()
    results = [racer.communicate(timeout=60)[0].split() for racer in racers]
    for number in range(rounds):
        outcomes = [result[number] for result in results]
        assert outcomes.count("CREATED") == 1
        assert storage.get(f"race/{number}") == b"abcd"[outcomes.index("CREATED") :][:1]


def test_a_listing_during_writes_shows_whole_objects_only(storage: Storage) -> None:
    size, objects = 300_000, 12
    with ThreadPoolExecutor(2) as pool:
        writing = pool.submit(lambda: [storage.put_new(f"w/{n:03d}", bytes(size)) for n in range(objects)])
        while not writing.done():
            assert all(entry.size == size for entry in storage.list(""))
    assert len(storage.list("w/")) == objects


def test_reopened_by_url_it_is_the_same_storage(storage: Storage) -> None:
    storage.put("a", b"1")
    again = open_storage(storage.url)
    assert again.get("a") == b"1"
    assert again is open_storage(storage.url)


def test_local_path_is_the_object_itself_or_none(storage: Storage) -> None:
    storage.put("a/b", b"mapped")
    path = storage.local_path("a/b")
    assert path.read_bytes() == b"mapped" if path is not None else storage.url.startswith("s3://")


def test_an_entry_tells_the_size_and_a_tag_that_changes_with_the_object(storage: Storage) -> None:
    assert storage.entry("a") is None
    storage.put("a", b"one")
    first = storage.entry("a")
    storage.put("a", b"two")
    second = storage.entry("a")
    assert first is not None
    assert second is not None
    assert (first.name, first.size) == ("a", 3) == (second.name, second.size)
    assert (first.tag != second.tag) == isinstance(storage, ObjectStorage), "a file system has no tags"
