"""A lane sink over an SQLite file: the smallest whole one, to test jobs with and to write others after.

    sink = SqliteLaneSink("out.db")
    ...
    sink.rows("out")        # the rows that are shown, as dicts: lane by lane, each in its order

One transaction checks the mark of a lane, writes its rows and moves the mark. All processes that write must
see the same file, on a local disk.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.connectors.lane_publisher import LanePublisher
from holdfast.connectors.lanes import LANES, Atomic, LaneMark, LaneRows, Outcome, Result, continues

BUSY_SECONDS = 2.0
_TABLES = (
    "create table if not exists marks (job text, uid text, lane int, epoch int, rows int, input text, "
    "primary key (job, uid, lane))",
    "create table if not exists shown (uid text, lane int, epoch int, number int, row text)",
)
_READ = "select epoch, rows, input from marks where job = ? and uid = ? and lane = ?"
_MOVE = "update marks set epoch = ?, rows = ?, input = ? where job = ? and uid = ? and lane = ?"


@dataclass(frozen=True)
class SqliteLaneSink:
    """`chunk_rows`: how many rows are shown at once; None: all of a lane in an epoch."""

    path: str
    chunk_rows: int | None = None
    exactly_once = True
    shared = True

    @property
    def atomic(self) -> Atomic:
        return "lane" if self.chunk_rows is None else "chunk"

    def lane_writer(self, job: str, uid: str) -> SqliteLaneWriter:
        return SqliteLaneWriter(str(self.path), job, uid, self.chunk_rows)

    def publisher(self, job: str, uid: str) -> LanePublisher:
        return LanePublisher(self.lane_writer(job, uid))

    def rows(self, uid: str) -> list[dict[str, Any]]:
        """What is shown: lane by lane, epoch by epoch, each row where it was."""
        if not Path(self.path).exists():
            return []
        with closing(sqlite3.connect(self.path)) as file:
            if not _is_begun(file):
                return []
            query = "select row from shown where uid = ? order by lane, epoch, number, rowid"
            return [json.loads(row) for (row,) in file.execute(query, [uid])]


@dataclass(frozen=True)
class SqliteLaneWriter:
    path: str
    job: str
    uid: str
    chunk_rows: int | None = None

    def open(self, term: int) -> OpenSqliteLanes:
        # No transaction is begun by itself: each is written out.
        file = sqlite3.connect(self.path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        return OpenSqliteLanes(self, file)


class OpenSqliteLanes:
    def __init__(self, writer: SqliteLaneWriter, file: sqlite3.Connection) -> None:
        self._file, self._chunk_rows = file, writer.chunk_rows
        self._job, self._uid = writer.job, writer.uid

    def begin(self, through: int) -> None:
        for table in _TABLES:
            self._file.execute(table)
        marks = [(self._job, self._uid, lane, through) for lane in range(LANES)]
        self._file.executemany("insert or ignore into marks values (?, ?, ?, ?, 0, '')", marks)

    def marks(self) -> Mapping[int, LaneMark]:
        if not _is_begun(self._file):
            return {}
        query = "select lane, epoch, rows, input from marks where job = ? and uid = ?"
        found = self._file.execute(query, [self._job, self._uid])
        return {lane: LaneMark(epoch, rows, input) for lane, epoch, rows, input in found}

    def write(self, rows: LaneRows) -> Result:
        # All is read and encoded before the file is locked.
        encoded = [json.dumps(row, default=str) for table in rows.load() for row in table.to_pylist()]
        while True:
            try:
                self._file.execute("begin immediate")
            except sqlite3.OperationalError as locked:
                return Result(Outcome.BUSY, reason=str(locked))
            try:
                result = self._write(rows, encoded)
                self._file.execute("commit")
            except sqlite3.OperationalError as failure:
                return Result(Outcome.UNAVAILABLE, reason=str(failure))
            finally:
                if self._file.in_transaction:
                    self._file.execute("rollback")
            if result is not None:
                return result

    def _write(self, rows: LaneRows, encoded: list[str]) -> Result | None:
        """One chunk, inside a transaction. None: there is more."""
        mark = self._mark(rows.lane)
        start = continues(mark, rows)
        if isinstance(start, Outcome):
            return Result(start, mark, reason=f"its mark is {mark}")
        end = rows.rows if self._chunk_rows is None else min(rows.rows, start + self._chunk_rows)
        shown = [(self._uid, rows.lane, rows.epoch, i, encoded[i]) for i in range(start, end)]
        self._file.executemany("insert into shown values (?, ?, ?, ?, ?)", shown)
        self._file.execute(_MOVE, [rows.epoch, end, rows.input, self._job, self._uid, rows.lane])
        return Result(Outcome.WRITTEN, rows.end) if end == rows.rows else None

    def _mark(self, lane: int) -> LaneMark | None:
        if not _is_begun(self._file):
            return None
        found = self._file.execute(_READ, [self._job, self._uid, lane]).fetchone()
        return None if found is None else LaneMark(*found)

    def close(self) -> None:
        self._file.close()


def _is_begun(file: sqlite3.Connection) -> bool:
    return file.execute("select 1 from sqlite_master where name = 'marks'").fetchone() is not None
