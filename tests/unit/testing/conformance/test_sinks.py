"""Every promise of a sink is asked for: a sink that breaks just this one is told so, by name."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest

from holdfast.connectors.contract import Mark, StagedPart
from holdfast.errors import DefinitionError, RetryableError
from holdfast.testing import conformance
from holdfast.testing.conformance import sink_showing
from holdfast.testing.conformance.sink_columns import COLUMNS
from holdfast.testing.conformance.sink_marks import MARKS
from holdfast.testing.conformance.sink_showing import SHOWING

SUITE = SHOWING.then(MARKS).then(COLUMNS)


@dataclass
class Place:
    """What a sink has written: rows by epoch, and marks by job and uid."""

    shown: list[tuple[int, pa.Table]] = field(default_factory=list)
    marks: dict[Any, Mark] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def rows(self) -> list[tuple[Any, ...]]:
        return [tuple(row.values()) for _, table in self.shown for row in table.to_pylist()]


class HonestPublisher:
    def __init__(self, place: Place, owner: Any) -> None:
        self.place, self.owner = place, owner

    def mark(self) -> Mark | None:
        return self.place.marks.get(self.owner)

    def begin(self, through: int) -> None:
        self.place.marks[self.owner] = max(self.mark() or Mark(0), Mark(through), key=lambda each: each.epoch)

    def published_through(self) -> int:
        return (self.mark() or Mark(0)).epoch

    def publish(self, epoch: int, parts: Sequence[StagedPart]) -> None:
        tables = [part.load() for part in parts if part.rows]
        with self.place.lock:
            if tables and epoch > self.published_through():
                self.show(epoch, tables, parts)

    def show(self, epoch: int, tables: Sequence[pa.Table], parts: Sequence[StagedPart]) -> None:
        self.place.shown += [(epoch, table) for table in tables]
        self.place.marks[self.owner] = Mark(epoch, parts[0].input)

    def close(self) -> None:
        pass


class HonestSink:
    exactly_once: Any = True
    publishes: type[HonestPublisher] = HonestPublisher

    def __init__(self, place: Place) -> None:
        self.place = place

    def publisher(self, job: str, uid: str) -> HonestPublisher:
        return self.publishes(self.place, (job, uid))

    def check_schema(self, schema: pa.Schema) -> None:
        for column in schema:
            if pa.types.is_nested(column.type):
                raise DefinitionError(f"column {column.name!r} is nested; make text of it")


def asked(sink: type[HonestSink], **how: Any) -> conformance.Report:
    places: dict[str, Place] = defaultdict(Place)
    return conformance.check_sink(
        lambda place: sink(places[place]),
        lambda place: places[place].rows(),
        take_away=lambda place: places[place].shown.clear(),
        **how,
    )


BROKEN: dict[str, type[HonestSink]] = {}


def breaks(name: str) -> Callable[[type], type]:
    """This publisher, or sink, breaks the promise `name`."""

    def added(broken: type) -> type:
        is_sink = issubclass(broken, HonestSink)
        BROKEN[name] = broken if is_sink else type(broken.__name__, (HonestSink,), {"publishes": broken})
        return broken

    return added


@breaks("sink")
class Unsure(HonestSink):
    exactly_once = "yes"


@breaks("shown-whole")
class FirstPartOnly(HonestPublisher):
    def show(self, epoch: int, tables: Sequence[pa.Table], parts: Sequence[StagedPart]) -> None:
        super().show(epoch, tables[:1], parts)


@breaks("empty-epochs")
class NeedsRows(HonestPublisher):
    def publish(self, epoch: int, parts: Sequence[StagedPart]) -> None:
        super().publish(epoch, [parts[0], *parts[1:]])


@breaks("all-or-nothing")
class PartByPart(HonestPublisher):
    def publish(self, epoch: int, parts: Sequence[StagedPart]) -> None:
        if epoch > self.published_through():
            for part in parts:
                if part.rows:
                    self.place.shown.append((epoch, part.load()))
            if any(part.rows for part in parts):
                self.place.marks[self.owner] = Mark(epoch, parts[0].input)


@breaks("close")
class TakesAway(HonestPublisher):
    def close(self) -> None:
        self.place.shown.clear()


@breaks("published-through")
class CountsOthers(HonestPublisher):
    def published_through(self) -> int:
        return max((mark.epoch for mark in self.place.marks.values()), default=0)

    def publish(self, epoch: int, parts: Sequence[StagedPart]) -> None:
        if epoch > HonestPublisher.published_through(self):
            tables = [part.load() for part in parts if part.rows]
            if tables:
                self.show(epoch, tables, parts)


@breaks("uids-apart")
class ForgetsUid(HonestSink):
    def publisher(self, job: str, uid: str) -> HonestPublisher:
        return HonestPublisher(self.place, job)


class Forgetful(HonestPublisher):
    def publish(self, epoch: int, parts: Sequence[StagedPart]) -> None:
        tables = [part.load() for part in parts if part.rows]
        if tables:
            self.show(epoch, tables, parts)


@breaks("again-shows-once")
class Appends(Forgetful):
    pass


@breaks("again-in-another-run")
class RemembersItself(Forgetful):
    """Knows what it has shown itself, and no more."""

    newest = 0

    def publish(self, epoch: int, parts: Sequence[StagedPart]) -> None:
        if epoch > self.newest:
            super().publish(epoch, parts)
            self.newest = epoch


@breaks("crash-while-publishing")
class MarksFirst(HonestPublisher):
    def publish(self, epoch: int, parts: Sequence[StagedPart]) -> None:
        if epoch <= self.published_through() or not any(part.rows for part in parts):
            return
        before = self.place.marks.get(self.owner, Mark(0))
        self.place.marks[self.owner] = Mark(epoch, parts[0].input)
        try:
            tables = [part.load() for part in parts if part.rows]
        except Exception:
            self.place.marks[self.owner] = before
            raise
        self.show(epoch, tables, parts)


@breaks("zombie")
class KnowsTheStart(RemembersItself):
    """Asks once, when it is opened."""

    def __init__(self, place: Place, owner: Any) -> None:
        super().__init__(place, owner)
        self.newest = HonestPublisher.published_through(self)


@breaks("two-at-once")
class LooksThenWrites(HonestPublisher):
    def publish(self, epoch: int, parts: Sequence[StagedPart]) -> None:
        if epoch > self.published_through():
            tables = [part.load() for part in parts if part.rows]
            if tables:
                self.show(epoch, tables, parts)


@breaks("mark-before-begin")
class MarksAtOnce(HonestSink):
    def publisher(self, job: str, uid: str) -> HonestPublisher:
        self.place.marks.setdefault((job, uid), Mark(0))
        return super().publisher(job, uid)


@breaks("mark-follows")
class MarksEmptyEpochs(HonestPublisher):
    def publish(self, epoch: int, parts: Sequence[StagedPart]) -> None:
        super().publish(epoch, parts)
        self.place.marks[self.owner] = Mark(epoch, parts[0].input if parts else "")


@breaks("mark-never-goes-back")
class BeginsAnyhow(HonestPublisher):
    def begin(self, through: int) -> None:
        self.place.marks[self.owner] = Mark(through)


@breaks("taken-away")
class LooksForRows(HonestPublisher):
    """Takes an epoch for shown as long as its rows are there."""

    def publish(self, epoch: int, parts: Sequence[StagedPart]) -> None:
        tables = [part.load() for part in parts if part.rows]
        with self.place.lock:
            if tables and (epoch, tables[0]) not in self.place.shown:
                self.show(epoch, tables, parts)


@breaks("check-schema-touches-nothing")
class MakesItsTable(HonestSink):
    def check_schema(self, schema: pa.Schema) -> None:
        super().check_schema(schema)
        self.publisher("job", "out").begin(0)


@breaks("check-schema")
class RefusesCurtly(HonestSink):
    def check_schema(self, schema: pa.Schema) -> None:
        if any(pa.types.is_nested(column.type) for column in schema):
            raise DefinitionError("not these columns")


@breaks("accepted-is-shown")
class MakesObjects(HonestPublisher):
    def publish(self, epoch: int, parts: Sequence[StagedPart]) -> None:
        for part in parts:
            part.load().to_pylist()
        super().publish(epoch, parts)


def test_a_sink_that_keeps_everything_passes() -> None:
    report = asked(HonestSink)
    assert report.kept == SUITE.names
    assert not report.not_asked
    assert str(report).startswith("kept: sink, shown-whole,")


def test_there_is_a_broken_sink_for_every_promise() -> None:
    assert set(BROKEN) == set(SUITE.names)


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_promise_is_named_with_what_was_seen_and_what_to_do(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # None of these sinks holds a lock while it loads: two publishers always meet, if not at once.
    monkeypatch.setattr(sink_showing, "MEET_SECONDS", 60)
    with pytest.raises(conformance.BrokenPromises) as found:
        asked(BROKEN[name])
    broken = {each.name: each for each in found.value.broken}
    assert name in broken
    assert len(broken) <= 6, "a check that finds everything finds nothing"
    for part in (name, broken[name].promise, broken[name].seen, broken[name].remedy):
        assert part in str(found.value)


def test_the_report_reads_well() -> None:
    with pytest.raises(conformance.BrokenPromises) as found:
        asked(BROKEN["zombie"], only=["zombie"])
    assert str(found.value).splitlines() == [
        "KnowsTheStart breaks 1 of 1 promises (holdfast/connectors/contract.py):",
        "",
        "zombie: a publisher that was paused and replaced shows nothing again when it wakes up",
        "    seen: after epoch 2 was published late by the run that had been replaced: shown ('anna', 1), "
        "('ben', 22), ('ben', 22), ('cleo', 333), to be shown ('anna', 1), ('ben', 22), ('cleo', 333)",
        "    do:   ask the place itself, in the transaction that writes, whether the epoch is shown; not "
        "what the publisher knew when it was opened",
    ]


def test_an_error_of_the_sink_is_what_was_seen() -> None:
    with pytest.raises(conformance.BrokenPromises) as found:
        asked(BROKEN["empty-epochs"], only=["empty-epochs"])
    assert found.value.broken[0].seen.startswith("IndexError: list index out of range at ")
    assert "test_sinks.py" in found.value.broken[0].seen


def test_a_publisher_that_was_overtaken_may_refuse() -> None:
    class Refuses(HonestPublisher):
        def publish(self, epoch: int, parts: Sequence[StagedPart]) -> None:
            if epoch < self.published_through():
                raise RetryableError("another run is past this; ask it again")
            super().publish(epoch, parts)

    refusing = type("Refusing", (HonestSink,), {"publishes": Refuses})
    assert "zombie" in asked(refusing, only=["zombie"]).kept


def test_what_does_not_fit_the_sink_is_not_asked_and_says_why() -> None:
    class Plain:
        exactly_once = False

        def __init__(self, place: Place) -> None:
            self.place = place

        def publisher(self, job: str, uid: str) -> Any:
            made = Forgetful(self.place, (job, uid))
            return type("Plain", (), {n: getattr(made, n) for n in ("publish", "close", "published_through")})

    places: dict[str, Place] = defaultdict(Place)
    report = conformance.check_sink(lambda place: Plain(places[place]), lambda place: places[place].rows())
    assert report.not_asked["zombie"] == "it says exactly_once = False"
    assert report.not_asked["mark-follows"] == "its publisher has no mark and begin"
    assert report.not_asked["check-schema"] == "it has no check_schema"
    assert "not asked: zombie (it says exactly_once = False)" in str(report)


def test_a_promise_that_does_not_exist_and_a_sample_that_is_too_small_are_refused() -> None:
    with pytest.raises(ValueError, match=r"no promises \['zombies'\]; there are: sink, "):
        asked(HonestSink, only=["zombies"])
    with pytest.raises(ValueError, match="the sample has 1 rows"):
        asked(HonestSink, sample=pa.table({"n": [1]}))


def test_a_sink_of_other_columns_is_asked_with_a_sample_of_its_own() -> None:
    assert "zombie" in asked(HonestSink, sample=pa.table({"n": [1, 2, 3, 4]})).kept
