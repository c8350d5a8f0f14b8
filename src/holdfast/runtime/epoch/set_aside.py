"""Rows that sources set aside in an epoch, and which row it was where a source fails on one.

Whether there are any, and how many were read, is counted in passing, by the job that reads the rows anyway:
they are looked for only where there are some, or where that job may not have counted all.
Always true: rows are set aside by the job that is committed with them, so they are the same after a crash.
"""

from __future__ import annotations

import queue
import shlex
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.connectors.contract import PlacedReader, Sifted, SiftingReader, Slice, SourceReader
from holdfast.errors import MalformedInput
from holdfast.tasks.messages import TaskResult
from holdfast.tasks.task_output import load_payload

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WAIT_SECONDS = 3.0
"""For what a job counted that gave results: it is there within milliseconds."""
ROW_CHARS_MAX = 200


@dataclass(frozen=True, slots=True)
class RowsAside:
    """How many rows an epoch set aside of one source, and what is wrong with one of them."""

    rows: int
    reason: str


class Counts:
    """What the jobs of one epoch counted, by source. `uncounted`: sources of which Spark tells nothing, as
    found out in any epoch so far."""

    def __init__(self, uncounted: set[str]) -> None:
        self._uncounted = uncounted
        self._sifted: dict[str, Sifted] = {}
        self._ran: set[str] = set()
        self._known: dict[str, tuple[int, int]] = {}

    def watch(self, uid: str, sifted: Sifted) -> DataFrame:
        """The rows that fit; the first job over all of them counts."""
        self._sifted[uid] = sifted
        return sifted.rows

    def ran(self, results: Sequence[TaskResult]) -> None:
        """A job has run. One without results may have been left out by Spark, with its counts."""
        if results:
            self._ran |= self._sifted.keys()

    def all_fit(self, uid: str) -> bool:
        """Whether it is certain that no row was malformed."""
        rows, malformed = self._told(uid)
        return rows > 0 and malformed == 0

    def rows_read(self) -> dict[str, int]:
        """Source -> its rows that fit, of those that were counted; before any transform of the job."""
        told = {uid: self._told(uid) for uid in self._ran}
        return {uid: rows - malformed for uid, (rows, malformed) in told.items() if rows}

    def _told(self, uid: str) -> tuple[int, int]:
        """How many rows were read, and how many of them are malformed. No rows: it is not known. Spark also
        counts none where it proves that nothing comes of them, and leaves them unread."""
        if uid not in self._ran or uid in self._uncounted:
            return 0, 0
        if uid not in self._known:
            told: queue.SimpleQueue[tuple[int, int] | None] = queue.SimpleQueue()
            observed = self._sifted[uid].observed
            threading.Thread(target=lambda: told.put(_observed(observed)), daemon=True).start()
            try:
                known = told.get(timeout=WAIT_SECONDS)
            except queue.Empty:
                known = None
            if known is None:
                # No job reads the rows: a transform makes its own. Waiting in every epoch would tell no more.
                self._uncounted.add(uid)
            self._known[uid] = known or (0, 0)
        return self._known[uid]


def counting(frame: DataFrame) -> Sifted:
    """The rows of a source that sets none aside; the job that reads them counts them."""
    from pyspark.sql import Observation
    from pyspark.sql.functions import count, lit

    seen = Observation()
    return Sifted(frame.observe(seen, count(lit(1)).alias("rows")), lambda: (seen.get["rows"], 0))


def _observed(told: Callable[[], tuple[int, int]]) -> tuple[int, int] | None:
    """What Spark tells of an observation. None: that it left it out."""
    from py4j.protocol import Py4JError

    try:
        return told()
    except (Py4JError, KeyError):
        return None


def rows_aside(results: Sequence[TaskResult], storage_url: str, reader: SourceReader) -> RowsAside | None:
    """What the chosen results of a job set aside of what a reader read; None: nothing."""
    given = [result for result in results if result.rows]
    if not given:
        return None
    letters = load_payload(storage_url, given[-1].outputs[0].payload)
    row = letters.slice(letters.num_rows - 1).to_pylist()[0]
    where = _where(reader, row["file"], row["line"])
    return RowsAside(sum(result.rows for result in given), f"{where}: {row['reason']}")


def malformed_input(
    spark: SparkSession, epoch: int, slices: Mapping[str, Slice], readers: Mapping[str, SourceReader]
) -> MalformedInput | None:
    """The error of a row on which a job failed, with its file and line. None: it is not to be found."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    for uid, slice in slices.items():
        reader = readers[uid]
        if not isinstance(reader, SiftingReader):
            continue
        try:
            found = reader.first_malformed(spark, slice)
        except (PySparkException, Py4JError, ConnectionError, EOFError):
            continue
        if found is not None:
            row = f"{found.row[:ROW_CHARS_MAX]!r}{'...' if len(found.row) > ROW_CHARS_MAX else ''}"
            where = _where(reader, found.file, found.line)
            name = shlex.quote(found.name) if found.name else ""
            return MalformedInput(uid, epoch, where, found.reason, row, name)
    return None


def _where(reader: SourceReader, file: str, line: int | None) -> str:
    one, other = reader.place_words if isinstance(reader, PlacedReader) else ("file", "line")
    return f"{one} {file!r}" if line is None else f"{one} {file!r}, {other} {line}"
