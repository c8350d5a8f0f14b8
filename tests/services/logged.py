"""Sources that are read by way of a log, as the planner opens them, asked for what every source promises."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from holdfast.checkpoint.log.received import ReceivedLog
from holdfast.connectors.contract import Json, SourceReader
from holdfast.storage.local_directory import LocalStorage
from holdfast.testing import conformance
from holdfast.testing.conformance.source_planning import PLANNING

WANTED_OF_A_LOG = set(PLANNING.names) - {"check", "waiting-and-news", "committed"}
"""All but what is asked of sources that have it."""


class ByItsLog:
    """Opened with the log that belongs to its uid, whose writer has a name of its own at every start."""

    replayable = True

    def __init__(self, source: Any, directory: Path, opened: list[Any]) -> None:
        self.schema = source.schema
        self._source, self._directory, self._opened = source, directory, opened

    def reader(self, notes: Sequence[Json]) -> SourceReader:
        log = ReceivedLog(LocalStorage(self._directory), "in", uuid.uuid4().hex)
        reader: SourceReader = self._source.logged_reader(notes, log)
        self._opened.append(reader)
        return reader


def kept_by(source: Any, directory: Path, received: Callable[[], object]) -> set[str]:
    """The promises that the source keeps, once a run of it has logged its input: `received` waits until all
    is there, in several batches."""
    opened: list[Any] = []

    def make() -> ByItsLog:
        return ByItsLog(source, directory, opened)

    try:
        make().reader([]).next(None, None, 0)
        received()
        opened.pop().close()
        asked = set(PLANNING.names) - {"released"}
        report = conformance.check_source(make, max_rows="approximate", endless=True, only=asked)
        # What is let go of is not there for other promises.
        last = conformance.check_source(make, max_rows="approximate", endless=True, only=["released"])
    finally:
        for reader in opened:
            reader.close()
    return {*report.kept, *last.kept}
