"""Places of a FileSource and a FileSink that are away, or let nobody in; and a checkpoint that is."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast.connectors.contract import StagedPart
from holdfast.connectors.files import locations
from holdfast.connectors.files.sink import FileSink
from holdfast.connectors.files.source import FileReader, FileSource
from holdfast.errors import (
    DefinitionError,
    RetryableError,
    StorageError,
    StorageRefused,
    Unavailable,
    UnknownOutcome,
)
from holdfast.storage.local_directory import LocalStorage

ROWS = pa.table({"n": [1, 2, 3]})
ONE_FILE: dict[str, Any] = {}
MANY_FILES = {"max_file_rows": 2}
AWAY = [StorageError("no answer; check the network"), UnknownOutcome("no answer; write it again")]


class Failing(LocalStorage):
    """Storage that does what it does otherwise, unless a test says what it fails with."""

    failure: Exception | None = None


def _failing(name: str) -> Callable[..., Any]:
    def method(self: Failing, *given: Any) -> Any:
        if Failing.failure is not None:
            raise Failing.failure
        return getattr(LocalStorage, name)(self, *given)

    return method


for _name in ("put", "put_new", "get", "size", "list", "delete", "move"):
    setattr(Failing, _name, _failing(_name))


@pytest.fixture
def away(monkeypatch: pytest.MonkeyPatch) -> Callable[[Exception | None], None]:
    """Has all storage of sinks fail from now on; None: no more."""
    for module in ("sink", "sink_lanes"):
        monkeypatch.setattr(f"holdfast.connectors.files.{module}.open_storage", Failing)
    monkeypatch.setattr(Failing, "failure", None)

    def fail(failure: Exception | None) -> None:
        Failing.failure = failure

    return fail


def part(load: Callable[[], pa.Table] = lambda: ROWS) -> StagedPart:
    return StagedPart(0, ROWS.num_rows, load, "slices")


def shown(place: Path) -> list[int]:
    return [json.loads(line)["n"] for path in sorted(place.glob("*.json")) for line in path.open()]


@pytest.mark.parametrize("how", [ONE_FILE, MANY_FILES], ids=["one file", "many files"])
@pytest.mark.parametrize("failure", AWAY, ids=lambda failure: type(failure).__name__)
def test_a_place_of_a_sink_that_is_away_is_unavailable_and_rows_are_shown_once_when_it_is_back(
    tmp_path: Path, away: Callable[[Exception | None], None], how: dict[str, Any], failure: Exception
) -> None:
    sink = FileSink(tmp_path, format="json", **how)
    publisher = sink.publisher("job", "out")
    publisher.begin(0)
    away(failure)
    sink.check()
    asked: list[Callable[[], object]] = [
        lambda: sink.publisher("job", "out").published_through(),
        publisher.published_through,
        lambda: publisher.begin(0),
        lambda: publisher.publish(1, [part()]),
    ]
    for ask in asked:
        with pytest.raises(Unavailable, match="no answer"):
            ask()
    away(None)
    publisher.publish(1, [part()])
    publisher.publish(1, [part()])
    assert shown(tmp_path) == [1, 2, 3]


@pytest.mark.parametrize("how", [ONE_FILE, MANY_FILES], ids=["one file", "many files"])
def test_a_place_of_a_sink_that_lets_nobody_in_is_one_clear_error(
    tmp_path: Path, away: Callable[[Exception | None], None], how: dict[str, Any]
) -> None:
    sink = FileSink(tmp_path, format="json", **how)
    publisher = sink.publisher("job", "out")
    publisher.begin(0)
    away(StorageRefused("403 AccessDenied; check the rights"))
    asked: list[Callable[[], object]] = [sink.check, lambda: publisher.begin(0)]
    asked += [lambda: publisher.publish(1, [part()])]
    for ask in asked:
        with pytest.raises(DefinitionError, match=r"sink path .* cannot be used: 403 AccessDenied; check"):
            ask()


@pytest.mark.parametrize("how", [ONE_FILE, MANY_FILES], ids=["one file", "many files"])
def test_a_checkpoint_that_is_away_is_no_outage_of_the_sink(tmp_path: Path, how: dict[str, Any]) -> None:
    def load() -> pa.Table:
        raise StorageError("the checkpoint gives no answer")

    publisher = FileSink(tmp_path, format="json", **how).publisher("job", "out")
    publisher.begin(0)
    with pytest.raises(RetryableError, match="the checkpoint gives no answer") as raised:
        publisher.publish(1, [part(load)])
    assert type(raised.value) is StorageError


@pytest.fixture
def reader(tmp_path: Path) -> FileReader:
    for number in range(3):
        (tmp_path / f"{number}.json").write_text('{"n": 1}\n')
        os.utime(tmp_path / f"{number}.json", (number, number))
    return FileSource(tmp_path, format="json", schema="n long").reader([])


@pytest.mark.parametrize(
    ("code", "kind"), [(errno.EIO, Unavailable), (errno.ESTALE, Unavailable), (errno.EACCES, DefinitionError)]
)
def test_a_mount_of_a_source_that_fails_is_waited_for_unless_it_lets_nobody_in(
    reader: FileReader, monkeypatch: pytest.MonkeyPatch, code: int, kind: type[Exception]
) -> None:
    def scandir(path: object) -> Any:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(locations.os, "scandir", scandir)
        for ask in (lambda: reader.next(None, 10, 0), lambda: reader.exhausted(None)):
            with pytest.raises(kind, match=r"source path .* cannot list"):
                ask()
    assert reader.next(None, None, 0) is not None


def test_files_that_were_chosen_when_their_place_went_away_still_wait_in_their_order(
    reader: FileReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, reads = reader._directory.read, list[str]()

    def fail_at_the_second(name: str, offset: int, length: int) -> bytes:
        reads.append(name)
        if len(reads) == 2:
            raise Unavailable("no answer")
        return read(name, offset, length)

    monkeypatch.setattr(reader._directory, "read", fail_at_the_second)
    end = reader.end_at(None, 0, None)
    with pytest.raises(Unavailable):
        reader.next(None, 10, 0)
    found = reader.next(None, 10, 0)
    assert found is not None
    assert ([name for name, *_ in found.detail], found.end) == (["0.json", "1.json", "2.json"], end)
