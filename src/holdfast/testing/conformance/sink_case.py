"""A sink under test: one place of its own for each promise, opened as runs of a job open it.

*Another run* is here the sink made once more for the same place, while the publisher of the earlier run is
still there, as after a crash that left a zombie.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from holdfast.connectors.contract import Publisher, RememberingPublisher, Sink, StagedPart
from holdfast.errors import HoldfastError
from holdfast.testing.conformance.promises import NotAsked, Seen

SAMPLE = pa.table(
    {
        "user": ["anna", "ben", "cleo", "dora", "emil", "finn"],
        "total": pa.array([1, 22, 333, 4_444, 55_555, 666_666], pa.int64()),
    }
)
"""The rows that sinks are given unless the caller says others: `user string, total long`."""

JOB, UID = "job", "out"

Rows = Counter[str]


class Died(BaseException):
    """The publisher's process is gone. No handler of errors may take it."""


@dataclass(frozen=True)
class SinkCase:
    """A sink under test, at a place where nothing was shown before."""

    make: Callable[[str], Sink]
    read_rows: Callable[[str], Iterable[Sequence[object]]]
    sample: pa.Table
    take_away: Callable[[str], object] | None
    place: str

    @property
    def sink(self) -> Sink:
        return self.make(self.place)

    def needs_exactly_once(self) -> None:
        if not self.sink.exactly_once:
            raise NotAsked("it says exactly_once = False")

    def run(self, uid: str = UID) -> Publisher:
        """The publisher of another run, asked and begun as at its start."""
        publisher = self.sink.publisher(JOB, uid)
        if isinstance(publisher, RememberingPublisher):
            publisher.mark()
            publisher.begin(0)
        else:
            publisher.published_through()
        return publisher

    def remembering(self) -> RememberingPublisher:
        """A publisher of another run, not begun yet."""
        publisher = self.sink.publisher(JOB, UID)
        if not isinstance(publisher, RememberingPublisher):
            raise NotAsked("its publisher has no mark and begin")
        return publisher

    def part(self, number: int, *rows: int, input: str = "") -> StagedPart:
        """A part with these rows of the sample, by number."""
        table = self.sample.take(pa.array(rows, pa.int64()))
        return StagedPart(number, len(rows), lambda: table, input)

    def expect(self, what: str, *rows: int) -> None:
        """Raise Seen unless just these rows of the sample are shown, each once."""
        wanted = Counter(repr(tuple(row.values())) for row in self.part(0, *rows).load().to_pylist())
        shown = Counter(repr(tuple(row)) for row in self.read_rows(self.place))
        if shown != wanted:
            raise Seen(f"{what}: shown {_listed(shown)}, to be shown {_listed(wanted)}")


def _listed(rows: Rows) -> str:
    return ", ".join(sorted(rows.elements())) or "nothing"


def may_be_refused(publish: Callable[[], None]) -> None:
    """Publish with a publisher that another one has overtaken: it may say so."""
    try:
        publish()
    except HoldfastError:
        return


def failing_part(number: int, error: BaseException) -> StagedPart:
    """A part that cannot be loaded."""

    def load() -> pa.Table:
        raise error

    return StagedPart(number, 1, load)
