"""Rows of parts that a job has no more are never left behind in silence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import holdfast as hf
from holdfast.checkpoint.chain.checkpoint import read_layout
from holdfast.checkpoint.chain.commits import Chain, Committed
from holdfast.checkpoint.chain.layout import keep_layout
from holdfast.checkpoint.chain.view import news
from holdfast.checkpoint.store import names
from holdfast.checkpoint.store.records import Extent, OperatorSchema, StagedFile
from holdfast.connectors.memory import MemorySink, MemorySource
from holdfast.errors import RestoreError
from holdfast.graph.streams import Declaration
from holdfast.runtime.parts.part_jobs import enter_checkpoint
from holdfast.runtime.parts.removed_parts import refuse_left_rows
from holdfast.storage.local_directory import LocalStorage
from tests.unit.cli.parts_kit import CHANNEL, Parts


@pytest.fixture
def parts(tmp_path: Path) -> Parts:
    return Parts(tmp_path / "ck")


def no_spark() -> Any:
    pytest.fail("this can be told without Spark")


def start_with(parts: Parts, name: str) -> None:
    """Begin a run of the job with this part alone; what the others remember may be dropped."""
    job = Declaration("fraud")
    part = None if name == "main" else job.part(name)
    job.source(MemorySource([], schema="user string"), uid="in", part=part).sink(MemorySink(), uid="new")
    enter_checkpoint(job.graph(), parts.root.url, {"allow_dropped_state": True, "key_groups": 4}, no_spark)


def test_rows_in_a_channel_of_a_part_that_is_gone_are_refused_until_they_are_read(parts: Parts) -> None:
    refuse_left_rows(parts.root.url, ("main", "scoring"))
    remedy = rf"holdfast channels remove {CHANNEL} --app FILE --checkpoint {parts.main.url}"
    with pytest.raises(
        RestoreError, match=rf"no longer has part 'main'.* 15 rows that part 'scoring'.*{remedy}"
    ):
        start_with(parts, "scoring")
    with pytest.raises(RestoreError, match="15 rows"):
        start_with(parts, "scoring")
    parts.read([3, 0])
    start_with(parts, "scoring")


def test_rows_that_wait_for_a_sink_of_a_part_that_is_gone_are_refused_until_they_are_shown(
    parts: Parts,
) -> None:
    parts.read([3, 0])
    chain, extent = Chain(parts.scoring), Extent(object="data/3/rows", offset=0, length=1, checksum="")
    file = StagedFile(stream="s", epoch=2, part=0, extent=extent, rows=7, sinks=("out",))
    for staged, shown in (((file,), 1), ((), 2)):
        if not staged:
            remedy = rf"holdfast sinks set-aside out --checkpoint {parts.scoring.url}"
            with pytest.raises(
                RestoreError, match=rf"no longer has part 'scoring': 7 rows of epochs.*{remedy}"
            ):
                start_with(parts, "main")
        view = chain.load()
        record = news(view, term=1, run="run-scoring", published_through={"out": shown})
        assert isinstance(chain.commit(view, replace(record, staged=staged)), Committed)
    # What is left to see to are the rows that the part which sent them still holds.
    with pytest.raises(RestoreError, match=f"channel {CHANNEL!r} holds 30 rows that its part may still read"):
        start_with(parts, "main")


def test_a_part_that_never_began_has_left_nothing(parts: Parts) -> None:
    keep_layout(
        parts.root, replace(parts.layout, parts=("main", "scoring", "new")), allow_dropped_state=False
    )
    refuse_left_rows(parts.root.url, ("main", "scoring"))


def test_damage_in_a_part_that_is_gone_is_told_with_its_place(parts: Parts) -> None:
    parts.read([3, 0])
    parts.main.put(names.commit(3), b"damaged")
    with pytest.raises(
        RestoreError, match=rf"no longer has part 'main'.* restore {parts.main.url} from a copy"
    ):
        start_with(parts, "scoring")


def test_where_it_cannot_be_read_how_far_a_channel_was_read_all_of_it_waits(parts: Parts) -> None:
    parts.read([3, 0])
    parts.scoring.put(names.commit(2), b"damaged")
    with pytest.raises(RestoreError, match="30 rows that part 'scoring' has not read"):
        start_with(parts, "scoring")


def everything(parts: Parts) -> dict[str, bytes]:
    return {entry.name: parts.root.get(entry.name) for entry in parts.root.list("")}


class Remembers(hf.KeyedFunction):
    """Remembers a count."""

    output = "n long"
    n = hf.ValueState("long", default=0)

    def process(self, key: Any, rows: Any, ctx: Any) -> Any:
        return []


def job_of(
    *, channels: tuple[str, ...] = (CHANNEL,), more: str = "", keyed: bool = False, sink: str = "out"
) -> Declaration:
    """The job of `Parts`, with other channels to `scoring`, a part more, or state in `scoring`."""
    job = Declaration("fraud")
    scoring = job.part("scoring")
    clicks = job.source(MemorySource([], schema="user string, n long"), uid="clicks")
    for uid in channels:
        stream = clicks.into(scoring, uid=uid)
        rows = stream.key_by("user").process(Remembers(), uid="count") if keyed else stream
        rows.sink(MemorySink(), uid=sink)
    if more:
        clicks.into(job.part(more), uid=f"{more}-in").sink(MemorySink(), uid=more)
    return job


def alone(name: str) -> Declaration:
    job = Declaration("fraud")
    part = None if name == "main" else job.part(name)
    job.source(MemorySource([], schema="user string"), uid="clicks", part=part).sink(MemorySink(), uid="out")
    return job


def hold_state(parts: Parts) -> None:
    """Let `scoring` remember something for an operator that no job here declares."""
    chain = Chain(parts.scoring)
    view = chain.load()
    record = news(view, term=1, run="run-scoring", published_through={})
    schema = OperatorSchema(uid="former", key=(("user", "string"),), states=())
    assert isinstance(chain.commit(view, replace(record, operators=(schema,))), Committed)


REFUSED: dict[str, tuple[Callable[[], Declaration], dict[str, Any], str]] = {
    "part, and its state may not be dropped": (lambda: alone("main"), {}, "--allow-dropped-state"),
    "part, and its state may be dropped": (
        lambda: alone("scoring"), {"allow_dropped_state": True}, "15 rows that part 'scoring' has not read",
    ),
    "channel with rows": (
        lambda: job_of(channels=("other-in",)), {}, f"channels remove {CHANNEL} --app FILE",
    ),
    "channel with rows, beside a new part": (
        lambda: job_of(channels=("other-in",), more="audit"), {"allow_dropped_state": True}, "may still read",
    ),
    "a new part, beside state that is not declared": (lambda: job_of(more="audit"), {}, "'former'"),
    "a new part, with other key groups": (
        lambda: job_of(more="audit"), {"key_groups": 8, "allow_dropped_state": True}, "has 4 key groups",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("declare", "options", "told"), REFUSED.values(), ids=REFUSED)
def test_a_start_that_is_refused_changes_nothing_that_is_stored(
    parts: Parts, declare: Callable[[], Declaration], options: dict[str, Any], told: str
) -> None:
    hold_state(parts)
    before = everything(parts)
    given: Any = {"key_groups": 4, **options}
    with pytest.raises(RestoreError, match=told):
        enter_checkpoint(declare().graph(), parts.root.url, given, no_spark)
    assert everything(parts) == before


def give_up_channel(parts: Parts) -> None:
    """As `holdfast channels remove` does, for a job that has the channel no more."""
    chain = Chain(parts.main)
    record = news(chain.load(), term=1, run="run-main", published_through={}, channels={})
    assert isinstance(chain.commit(chain.load(), record), Committed)


@pytest.mark.parametrize("more", ["", "audit"])
def test_a_channel_that_is_there_again_behind_a_gap_is_refused_and_nothing_changes(
    parts: Parts, more: str
) -> None:
    give_up_channel(parts)
    before = everything(parts)
    told = rf"has read channel {CHANNEL!r} up to epoch 1 .*'main' has come to epoch 3 without it.*another uid"
    with pytest.raises(RestoreError, match=told):
        enter_checkpoint(job_of(more=more).graph(), parts.root.url, {"key_groups": 4}, no_spark)
    assert everything(parts) == before
    again = job_of(channels=("clicks-again",))
    enter_checkpoint(again.graph(), parts.root.url, {"key_groups": 4}, no_spark)


def test_a_channel_that_is_there_again_without_a_gap_is_not_refused(parts: Parts) -> None:
    parts.read([3, 0])
    give_up_channel(parts)
    enter_checkpoint(job_of().graph(), parts.root.url, {"key_groups": 4}, no_spark)


def test_a_savepoint_that_does_not_fit_leaves_the_place_of_the_new_job_empty(
    parts: Parts, tmp_path: Path
) -> None:
    (tmp_path / "sp").mkdir()
    keep_layout(LocalStorage(tmp_path / "sp"), parts.layout, allow_dropped_state=False)
    given: Any = {"from_savepoint": str(tmp_path / "sp"), "key_groups": 4}
    with pytest.raises(RestoreError, match="savepoint"):
        enter_checkpoint(job_of().graph(), str(tmp_path / "new"), given, no_spark)
    assert LocalStorage(tmp_path / "new").list("") == []


def test_a_start_that_fits_writes_the_new_parts_down(parts: Parts) -> None:
    options: Any = {"key_groups": 4}
    enter_checkpoint(job_of(more="audit", keyed=True).graph(), parts.root.url, options, no_spark)
    assert {*(read_layout(parts.root) or parts.layout).parts} == {"main", "scoring", "audit"}


def test_spark_is_not_started_to_look_at_what_is_not_there(tmp_path: Path) -> None:
    job = Declaration("fraud")
    rows = job.source(MemorySource([], schema="user string"), uid="in", part=job.part("scoring"))
    grown = rows.transform(lambda frame: frame).key_by("user").process(Remembers(), uid="count")
    grown.sink(MemorySink(), uid="out")
    enter_checkpoint(job.graph(), str(tmp_path / "new"), {}, no_spark)
    assert read_layout(LocalStorage(tmp_path / "new")) is not None
