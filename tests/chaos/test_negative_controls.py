"""One safeguard is taken away, and the checker must say so.

A crash test that stays green without the thing it tests proves nothing. docs/how-we-test.md lists every
safeguard with its control; those that need no Spark are in tests/unit, tests/property and tests/sim.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import holdfast as hf
from holdfast.chaos.inside.child import tightened
from holdfast.checkpoint.chain import history, plans
from holdfast.checkpoint.store import names
from holdfast.checkpoint.store.records import Record
from holdfast.runtime.epoch import recorded_plans, runner
from holdfast.storage.contract import Storage
from holdfast.storage.urls import open_storage
from holdfast.tasks import task_output
from tests.chaos import apps, doubles, victims
from tests.chaos.apps import LEDGER, Place, Shape
from tests.chaos.checker import Finding, Verdict, check, sink_rows
from tests.chaos.doubles import Gate
from tests.chaos.harness import Scenario, wait_until
from tests.chaos.inprocess import CRASH_EPOCH, Crash, Template, make_template, run_here
from tests.chaos.victims import Victim

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SMALL = Shape(epochs=5)
SHAPE = Shape(epochs=12)
STATES = ("seq", "total", "mark")
"""The ledger's states, as far as they are set where rows have no padding."""


def expect(verdict: Verdict, reason: str, finding: Finding) -> None:
    assert finding.verdict is verdict, finding
    assert reason in str(finding), finding


@pytest.fixture(scope="module", autouse=True)
def _often() -> Iterator[None]:
    with tightened():
        yield


@pytest.fixture(scope="module")
def stopped(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Template:
    return make_template(spark, tmp_path_factory.mktemp("stopped"), SHAPE)


# The driver chooses results, after Spark reported the whole job successful.


@pytest.fixture
def small_batches(spark: SparkSession) -> Iterator[None]:
    """So that the input of a task comes in several pieces."""
    name = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = spark.conf.get(name)
    spark.conf.set(name, "20")
    yield
    spark.conf.set(name, str(before))


@pytest.mark.heavy
@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("choice", ["driver", "tasks"])
def test_taking_what_the_tasks_of_a_cancelled_job_registered_is_found_out(
    choice: str, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, gate = Place(tmp_path), Gate(tmp_path / "gate")
    (tmp_path / "cut").write_text(f"3 {LEDGER}")
    monkeypatch.setattr(runner, "run_operator", partial(doubles.register_result, str(tmp_path)))
    if choice == "tasks":
        taken = partial(_taken_as_registered, runner.chosen_results, tmp_path)
        monkeypatch.setattr(runner, "chosen_results", taken)

    def cancel() -> None:
        both = SMALL.shards
        wait_until(lambda: len(doubles.registered_results(tmp_path, 3, LEDGER)) == both, "both results")
        (tmp_path / "cut").write_text("")
        spark.sparkContext.cancelAllJobs()
        gate.open()

    canceller = threading.Thread(target=cancel)
    canceller.start()
    ending = run_here(spark, place, SMALL)
    canceller.join()
    if choice == "tasks":
        assert ending.error is None, str(ending)
        expect(Verdict.FALSE, "is lost", check(place, SMALL))
    else:
        assert isinstance(ending.error, hf.EpochFailed), str(ending)
        assert run_here(spark, place, SMALL).error is None
        expect(Verdict.TRUE, "", check(place, SMALL))


def _taken_as_registered(choose: Callable[..., Any], directory: Path, job: Any, what: str) -> Any:
    try:
        return choose(job, what)
    except hf.EpochFailed:
        return doubles.registered_results(directory, 3, LEDGER)


# A sink knows what it has shown: by the fingerprint of each epoch, and by `published_through`.


@pytest.mark.heavy
@pytest.mark.parametrize("shows", ["told", "untold"])
@pytest.mark.parametrize("fingerprint", ["kept", "ignored"])
def test_a_sink_that_knows_neither_fingerprints_nor_what_it_shows_is_found_out(
    fingerprint: Literal["kept", "ignored"],
    shows: Literal["told", "untold"],
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    """Either alone is enough against a driver that dies between the sink and its next commit record."""
    place = Place(tmp_path)
    sink_of = doubles.appending_sinks(3, fingerprint, shows)

    def run() -> BaseException | None:
        return run_here(spark, place, SMALL, job=apps.declare(place, SMALL, sink_of=sink_of)).error

    errors = [run()]
    while errors[-1] is not None:
        assert isinstance(errors[-1], Crash)
        errors.append(run())
    # Sinks have a thread each: both may crash in one run.
    crashed = [path.parent.name for path in place.outputs.glob("*/_crashed")]
    assert len(crashed) == 2, f"each sink crashes once: {crashed}"
    if (fingerprint, shows) == ("ignored", "untold"):
        expect(Verdict.FALSE, "times", check(place, SMALL))
    else:
        expect(Verdict.TRUE, "", check(place, SMALL))


# Results belong to an attempt of a plan, and the commit names it.


def zombie_plan(place: Place, epoch: int) -> None:
    """A leader that woke up late has planned a committed epoch once more, and cut it elsewhere."""
    storage = open_storage(str(place.checkpoint))
    committed = plans.Plans(storage).newest(epoch)  # type: ignore[arg-type]
    assert committed is not None
    part = committed.slices["events"]
    shorter = msgspec.structs.replace(part, end=[part.end[0] - 50, part.end[1]], rows=SHAPE.rows - 50)
    plans.Plans(storage).write(msgspec.structs.replace(committed, attempt=2, slices={"events": shorter}))


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("attempts", "refused"),
    [
        pytest.param(lambda true, epoch: true, "", id="known"),
        pytest.param(lambda true, epoch: {}, "which of the plans was committed is lost", id="lost"),
        pytest.param(lambda true, epoch: {**true, epoch: 2}, "has to be read again as it was", id="wrong"),
    ],
)
def test_another_attempt_than_the_committed_one_is_never_replayed(
    attempts: Callable[[dict[int, int], int], dict[int, int]],
    refused: str,
    stopped: Template,
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The rewind goes back behind an epoch that the sink shows: exactly its rows must be replayed. What the
    chain says of its attempt is not the only safeguard: without it, or against it, the start is refused.
    """
    place = stopped.copy(tmp_path)
    shown = CRASH_EPOCH - 1
    zombie_plan(place, shown)
    before = sink_rows(place, LEDGER)
    for path in (place.checkpoint / names.data_of(shown - 1)).iterdir():
        path.unlink()
    for path in place.checkpoint.glob("snapshots/*/*"):
        if int(path.parent.name) >= shown - 1:
            path.unlink()
    true = recorded_plans.committed_attempts
    monkeypatch.setattr(
        recorded_plans, "committed_attempts", lambda chain, view: attempts(true(chain, view), shown)
    )
    ending = run_here(spark, place, SHAPE)
    assert any(f"(epoch {shown - 2})" in line for line in ending.said), str(ending)
    if refused:
        assert isinstance(ending.error, hf.RestoreError), str(ending)
        assert refused in ending.refusal
        after = sink_rows(place, LEDGER)
        assert {epoch: after[epoch] for epoch in before} == before, "what was shown has changed"
    else:
        assert ending.error is None, str(ending)
        expect(Verdict.TRUE, "", check(place, SHAPE))


# Checksums.


def unverified(kind: str, type: type[Record], data: bytes, name: str) -> Record:
    """A record read without a look at its checksum."""
    return msgspec.json.decode(data.partition(b"\n")[2], type=type)


def replace_once(path: Path, old: bytes, new: bytes) -> None:
    """Turn one bit, so that one number becomes another."""
    assert sum((a ^ b).bit_count() for a, b in zip(old, new, strict=True)) == 1, "more than one bit"
    data = path.read_bytes()
    assert data.count(old) == 1, f"{old!r} is {data.count(old)} times in {path}"
    path.write_bytes(data.replace(old, new))


def damaged_position(place: Place) -> None:
    """The newest commit says that it read up to a later event."""
    end = CRASH_EPOCH * SHAPE.rows
    replace_once(victims.newest_commit(place).path, b'"events":[%d' % end, b'"events":[%d' % (end + 1000))


def damaged_slice(place: Place) -> None:
    """The plan of the next epoch reads on to a later event."""
    end = (CRASH_EPOCH + 1) * SHAPE.rows
    replace_once(victims.next_plan(place).path, b'"end":[%d' % end, b'"end":[%d' % (end + 1000))


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("damage", "module", "reason"),
    [(damaged_position, history, "is lost"), (damaged_slice, plans, "was never generated")],
)
def test_a_record_read_without_its_checksum_is_found_out(
    damage: Callable[[Place], None],
    module: Any,
    reason: str,
    stopped: Template,
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place = stopped.copy(tmp_path / "checked")
    damage(place)
    assert run_here(spark, place, SHAPE).error is None
    expect(Verdict.TRUE, "", check(place, SHAPE))

    place = stopped.copy(tmp_path / "unchecked")
    damage(place)
    monkeypatch.setattr(module, "unseal", unverified)
    assert run_here(spark, place, SHAPE).error is None
    expect(Verdict.FALSE, reason, check(place, SHAPE))


def flip_unnoticed(victim: Victim, read: Callable[[bytes], Any]) -> None:
    """Turn a bit of a stretch that leaves it readable, but as something else: nearly any does."""
    whole = victim.path.read_bytes()
    stretch = whole[victim.offset : victim.offset + victim.length]
    right = read(stretch)
    for at in range(len(stretch) // 4, len(stretch)):
        hurt = stretch[:at] + bytes([stretch[at] ^ 1]) + stretch[at + 1 :]
        try:
            wrong = read(hurt)
        except (hf.CorruptionError, pa.ArrowException, OSError, ValueError):
            continue
        if wrong != right:
            victim.path.write_bytes(whole[: victim.offset] + hurt + whole[victim.offset + victim.length :])
            return
    raise AssertionError(f"every flipped bit of {victim.name} makes it unreadable; choose other rows")


def staged_totals(data: bytes) -> list[int]:
    return [row["total"] for row in task_output.unpack_rows(data, "staged rows").to_pylist()]


def delta_totals(data: bytes) -> list[int]:
    rows = pq.read_table(pa.BufferReader(data), page_checksum_verification=False).to_pylist()
    totals = [row["total"] for row in rows if row["state"] == "total"]
    if len(totals) * len(STATES) != len(rows) or None in totals:
        raise ValueError("the function would stumble over it")
    return totals


def unverified_extent(storage: Storage, extent: Any) -> bytes:
    return storage.get(extent.object, extent.offset, extent.length)


@pytest.mark.heavy
def test_staged_output_read_without_its_checksum_is_found_out(
    stopped: Template, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = stopped.copy(tmp_path / "checked")
    flip_unnoticed(victims.staged_output(place), staged_totals)
    assert run_here(spark, place, SHAPE).error is None
    expect(Verdict.TRUE, "", check(place, SHAPE))

    place = stopped.copy(tmp_path / "unchecked")
    flip_unnoticed(victims.staged_output(place), staged_totals)
    monkeypatch.setattr(task_output, "read_extent", unverified_extent)
    assert run_here(spark, place, SHAPE).error is None
    expect(Verdict.FALSE, "sum", check(place, SHAPE))


@pytest.mark.heavy
@pytest.mark.parametrize("checksums", ["verified", "unverified"])
def test_a_delta_read_without_its_checksums_is_found_out(
    checksums: str, stopped: Template, tmp_path: Path
) -> None:
    """Deltas are read in workers, so this one needs a process of its own."""
    place = stopped.copy_whole(tmp_path)
    flip_unnoticed(victims.newest_delta(place), delta_totals)
    arguments = ("--marks", "fixed", *(["--unverified"] if checksums == "unverified" else []))
    with Scenario(place, SHAPE, arguments) as scenario:
        driver = scenario.start()
        assert driver.wait() == 0, scenario.history.story()
        if checksums == "unverified":
            expect(Verdict.FALSE, "sum", check(place, SHAPE))
        else:
            assert "REWIND" in driver.said()
            expect(Verdict.TRUE, "", check(place, SHAPE))
