"""At most once: an epoch that a sink broke off in is not shown to it again, unless it knows what it shows."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast.checkpoint.store.records import Extent, StagedFile
from holdfast.connectors.contract import StagedPart
from holdfast.errors import DefinitionError, Unavailable
from holdfast.graph.guarantees import Guarantee
from holdfast.runtime.epoch import outages, publisher
from holdfast.runtime.epoch.outcome import EpochOutcome
from holdfast.runtime.epoch.showing import RowsOfPart, Showing
from tests.unit.runtime.control.control_kit import wait_until
from tests.unit.runtime.epoch.test_committer import Shown, outcome
from tests.unit.runtime.epoch.test_sink_queues import Leading

ROWS = 4


class Breaking(Shown):
    """Shows half of an epoch's rows, then raises `breaks`; `early`: before it has loaded any."""

    def __init__(self, breaks: Exception, *, early: bool = False, dedupes: bool = False) -> None:
        super().__init__(dedupes=dedupes)
        self.breaks: Exception | None = breaks
        self.early, self.rows, self.tries = early, list[int](), 0

    def publish(self, epoch: int, parts: list[StagedPart]) -> None:
        self.tries += 1
        if self.breaks is not None and self.early:
            raise self.breaks
        rows = [row for part in parts for row in part.load()["n"].to_pylist()]
        if self.breaks is not None:
            self.rows += rows[: len(rows) // 2]
            raise self.breaks
        self.rows += rows


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outages, "FIRST_SECONDS", 0.01)
    monkeypatch.setattr(outages, "MOST_SECONDS", 0.02)
    monkeypatch.setattr(publisher, "load_extent", lambda url, extent: pa.table({"n": numbers(extent.offset)}))


@pytest.fixture
def leading(tmp_path: Path) -> Iterator[Callable[..., Leading]]:
    made: list[Leading] = []

    def make(guarantee: Guarantee = Guarantee.AT_MOST_ONCE, **sinks: Any) -> Leading:
        made.append(Leading(tmp_path, guarantee, **sinks))
        return made[-1]

    yield make
    for each in made:
        each.work.close(wait=False)


def numbers(epoch: int) -> list[int]:
    return [10 * epoch + row for row in range(ROWS)]


def run(epoch: int) -> EpochOutcome:
    """An epoch with rows."""
    ran = outcome(epoch)
    extent = Extent(object=f"data/{epoch}", offset=epoch, length=1, checksum="")
    ran.staged.append(
        StagedFile(epoch=epoch, stream="stream", sinks=("out",), part=0, rows=ROWS, extent=extent)
    )
    return ran


def waits(job: Leading) -> bool:
    return bool(job.sinks["out"]["refused"] or job.sinks["out"]["unavailable"])


def lost(job: Leading) -> list[str]:
    return [text for text in job.said if text.startswith("LOST: ")]


def test_an_epoch_that_a_sink_refused_in_the_middle_is_not_shown_again_and_the_next_waits_for_a_person(
    leading: Any,
) -> None:
    out = Breaking(DefinitionError("no room for you; grant it"))
    job = leading(out=out)
    job.work.publish([run(1)])
    wait_until(lambda: waits(job), "it is refused")
    await_retry, waited = job.publishing.outages.wait, threading.Event()

    def wait(uid: str, is_over: Callable[[], bool]) -> bool:
        waited.set()
        return await_retry(uid, is_over)

    job.publishing.outages.wait = wait
    job.work.publish([run(2)])
    job.work.publish([run(3)])
    wait_until(waited.is_set, "the next epoch waits")
    assert lost(job) == [
        "LOST: sink 'out' broke off in epoch 1, and cannot say which of its 4 rows it shows: the others are "
        "lost, because none may be shown twice (at most once)"
    ]
    told = job.sinks["out"]["refused"]["reason"]
    assert told.startswith("sink 'out' cannot show epoch 1: no room for you; grant it; once that is mended, ")
    assert told.endswith("; what waits for it is lost when the run ends (at most once)")
    assert "set-aside" not in told
    assert (job.work.unpublished, out.tries) == ({"out": 2}, 1), "nobody tried it without a word"
    out.breaks = None
    job.context.wishes.retry("out")
    wait_until(lambda: job.work.unpublished == {}, "it has shown all")
    job.work.record_published()
    assert out.rows == [10, 11, *numbers(2), *numbers(3)]
    assert job.sinks["out"]["refused"] is None
    assert len(lost(job)) == 1


def test_an_epoch_in_whose_middle_a_server_went_away_is_not_shown_again(leading: Any) -> None:
    out = Breaking(Unavailable("it hung up"))
    job = leading(out=out)
    job.work.publish([run(1)])
    wait_until(lambda: waits(job), "it is away")
    out.breaks = None
    job.work.publish([run(2)])
    job.work.record_published()
    assert out.rows == [10, 11, *numbers(2)]
    assert len(lost(job)) == 1


def test_a_run_ends_though_the_last_epoch_broke_off_in_the_middle(leading: Any) -> None:
    job = leading(out=Breaking(DefinitionError("no room for you")))
    job.work.publish([run(1)])
    job.work.record_published()
    job.work.close(wait=True)
    assert (job.work.unpublished, job.work.refused, len(lost(job))) == ({}, {}, 1)


@pytest.mark.parametrize("breaks", [DefinitionError("no room for you"), Unavailable("nobody listens")])
def test_an_epoch_whose_rows_nobody_has_taken_waits_like_any(leading: Any, breaks: Exception) -> None:
    """A server that is away is noticed before anything is sent to it."""
    out = Breaking(breaks, early=True)
    job = leading(out=out)
    job.work.publish([run(1)])
    wait_until(lambda: waits(job), "it waits")
    out.breaks = None
    job.context.wishes.retry("out")
    wait_until(lambda: job.work.unpublished == {}, "it has shown all")
    job.work.record_published()
    assert (out.rows, lost(job)) == (numbers(1), [])


@pytest.mark.parametrize(
    ("guarantee", "dedupes"), [(Guarantee.AT_MOST_ONCE, True), (Guarantee.AT_LEAST_ONCE, False)]
)
def test_a_sink_that_recognises_an_epoch_and_one_that_may_repeat_it_are_shown_it_again(
    leading: Any, guarantee: Guarantee, dedupes: bool
) -> None:
    out = Breaking(DefinitionError("no room for you"), dedupes=dedupes)
    job = leading(guarantee, out=out)
    job.work.publish([run(1)]) if dedupes else job.work.submit([run(1)])
    wait_until(lambda: waits(job), "it is refused")
    out.breaks = None
    job.context.wishes.retry("out")
    wait_until(lambda: job.work.unpublished == {}, "it has shown all")
    job.work.record_published()
    assert (out.rows[2:], lost(job)) == (numbers(1), [])


def test_rows_that_go_to_another_process_are_taken() -> None:
    rows = RowsOfPart(dict)
    assert not rows.taken
    assert pickle.loads(pickle.dumps(rows))() == {}
    assert rows.taken


@pytest.mark.parametrize("showing", list(Showing))
def test_rows_are_put_aside_only_where_they_wait_in_storage(showing: Showing) -> None:
    for text in (showing.refused("out", 7, "no", "ck/"), showing.failed("out", "ck/")):
        assert ("set-aside" in text) is (showing is Showing.AFTER_COMMIT)
        assert ("lost" in text) is (showing is Showing.ONCE)
        assert ("without it" in text or "without that sink" in text) is (showing is Showing.BEFORE_COMMIT)
