"""Rows of parts that a job has no more are never left behind in silence."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from holdfast.checkpoint.chain.commits import Chain, Committed
from holdfast.checkpoint.chain.layout import keep_layout
from holdfast.checkpoint.chain.view import news
from holdfast.checkpoint.store import names
from holdfast.checkpoint.store.records import Extent, StagedFile
from holdfast.connectors.memory import MemorySink, MemorySource
from holdfast.errors import RestoreError
from holdfast.graph.streams import Declaration
from holdfast.runtime.parts.part_jobs import enter_checkpoint
from holdfast.runtime.parts.removed_parts import refuse_left_rows
from holdfast.runtime.settings import check_settings
from tests.unit.cli.parts_kit import CHANNEL, Parts


@pytest.fixture
def parts(tmp_path: Path) -> Parts:
    return Parts(tmp_path)


def start_with(parts: Parts, name: str) -> None:
    """Begin a run of the job with this part alone; what the others remember may be dropped."""
    job = Declaration("fraud")
    part = None if name == "main" else job.part(name)
    job.source(MemorySource([], schema="user string"), uid="in", part=part).sink(MemorySink(), uid="new")
    enter_checkpoint(job.graph(), check_settings(parts.root.url, {"allow_dropped_state": True}))


def test_rows_in_a_channel_of_a_part_that_is_gone_are_refused_until_they_are_read(parts: Parts) -> None:
    refuse_left_rows(parts.root.url, ("main", "scoring"))
    remedy = rf"holdfast channels remove {CHANNEL} --checkpoint {parts.main.url}"
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
