"""`holdfast check` on the frozen checkpoint: what it says, its exit code, and that it touches nothing."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from msgspec.structs import replace
from typer.testing import CliRunner, Result

from holdfast.admin import upgrade_check
from holdfast.admin.upgrade_check import rehearse
from holdfast.checkpoint.chain.commits import Chain
from holdfast.checkpoint.chain.live_files import with_deltas
from holdfast.checkpoint.chain.view import from_manifest, to_manifest
from holdfast.checkpoint.store.schemas import file_schema, lineage_of, record_of
from holdfast.cli.main import app
from holdfast.connectors.memory import MemorySink
from holdfast.state.cells.timers import timer_fields
from holdfast.state.contract import NextDue
from holdfast.state.encoding.layout import StateKind, StateLayout
from holdfast.state.files.evolution import Declared, evolve
from holdfast.state.files.schema_conversion import Lineage
from holdfast.storage.urls import open_storage
from tests.fixtures import evolved
from tests.fixtures.everything import job as first_job

FROZEN = Path(__file__).parents[2] / "fixtures" / "v1"
HEAD = "import holdfast as hf\nfrom tests.fixtures import everything, evolved\n"
SAME = HEAD + "job = everything.job(26, hf.MemorySink())\n"
LATER = HEAD + "job = evolved.job(26, evolved.Second(), hf.MemorySink(), hf.MemorySink())\n"
NARROWED = HEAD + "job = evolved.job(26, evolved.Narrowed(), hf.MemorySink(), hf.MemorySink())\n"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    shutil.copytree(FROZEN, tmp_path / "ck")
    return tmp_path / "ck"


def check(tmp_path: Path, text: str, *more: str) -> Result:
    """Run the command; Spark must not be needed."""
    (tmp_path / "app.py").write_text(text)
    return CliRunner().invoke(
        app, ["check", str(tmp_path / "app.py"), "--checkpoint", str(tmp_path / "ck"), *more]
    )


def said(result: Result) -> tuple[dict[tuple[str, str], str], dict[str, Any]]:
    *findings, verdict = map(json.loads, result.stdout.splitlines())
    return {(each["kind"], each["name"]): each["what"] for each in findings}, verdict


def everything_under(directory: Path) -> dict[str, tuple[bytes, float]]:
    return {
        str(path): (path.read_bytes(), path.stat().st_mtime)
        for path in directory.rglob("*")
        if path.is_file()
    }


@pytest.fixture(autouse=True)
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("Spark was started")

    monkeypatch.setattr("holdfast.cli.check.open_session", refuse)


def test_the_code_that_wrote_it_goes_on_as_it_is(checkpoint: Path, tmp_path: Path) -> None:
    before = everything_under(checkpoint)
    result = check(tmp_path, SAME, "--json")
    assert result.exit_code == 0, result.output
    found, verdict = said(result)
    assert set(found.values()) <= {"kept", "exactly-once", "none", "changed"}
    assert found["state", "everything.seen"] == found["operator", "sums"] == found["sink", "out"] == "kept"
    assert verdict["can_continue"]
    assert verdict["epoch"] == 20
    assert everything_under(checkpoint) == before


def test_an_upgrade_is_told_part_by_part(checkpoint: Path, tmp_path: Path) -> None:
    before = everything_under(checkpoint)
    result = check(tmp_path, LATER, "--json", "--allow-dropped-state", "--parallelism", "3")
    assert result.exit_code == 0, result.output
    found, _ = said(result)
    assert found == {
        ("source", "rows"): "kept",
        ("operator", "everything"): "kept",
        ("operator", "sums"): "kept",
        ("operator", "extra"): "added",
        ("state", "everything.fresh"): "added",
        ("state", "everything.count"): "converted",
        ("state", "everything.note"): "converted",
        ("state", "everything.items"): "converted",
        ("state", "everything.kinds"): "converted",
        ("state", "everything.mean"): "converted",
        ("state", "everything.top"): "dropped",
        ("state", "sums.accumulator"): "converted",
        ("state", "extra.accumulator"): "added",
        ("sink", "out"): "kept",
        ("sink", "totals"): "kept",
        ("sink", "kinds"): "added",
        ("job", "guarantee"): "exactly-once",
        ("job", "parallelism"): "changed",
        ("job", "code"): "changed",
        ("job", "plans"): "none",
    }
    assert everything_under(checkpoint) == before


def test_what_cannot_follow_ends_with_exit_code_4(checkpoint: Path, tmp_path: Path) -> None:
    before = everything_under(checkpoint)
    result = check(tmp_path, NARROWED)
    assert result.exit_code == 4
    errors = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 5
    assert any("state 'seen' of operator 'everything' is declared as int" in line for line in errors)
    result = check(tmp_path, LATER)
    assert result.exit_code == 4
    assert (
        "state 'top' of operator 'everything' is in the checkpoint (long) and not declared" in result.stderr
    )
    assert everything_under(checkpoint) == before


def test_an_operator_that_is_gone_needs_leave(checkpoint: Path, tmp_path: Path) -> None:
    text = LATER.replace("hf.MemorySink())\n", "hf.MemorySink(), uid='new-sums')\n")
    result = check(tmp_path, text)
    assert result.exit_code == 4
    assert "state of operator 'sums', which this job does not have" in result.stderr
    found, _ = said(check(tmp_path, text, "--json", "--allow-dropped-state"))
    assert found["operator", "sums"] == found["state", "sums.accumulator"] == "dropped"
    assert found["operator", "new-sums"] == "added"


def test_the_table_fits_people(checkpoint: Path, tmp_path: Path) -> None:
    result = check(tmp_path, SAME)
    assert result.exit_code == 0
    assert "goes on after" in result.stdout
    assert "`run` can go on from here" in result.stdout


def test_where_there_is_no_checkpoint_yet_the_job_is_checked(tmp_path: Path) -> None:
    result = check(tmp_path, SAME)
    assert result.exit_code == 0, result.output
    begins = "there is no checkpoint in"
    assert begins in result.stdout
    assert "yet, and `run` would begin one; nothing was touched" in " ".join(result.stdout.split())
    found, verdict = said(check(tmp_path, SAME, "--json"))
    assert set(found.values()) == {"added", "exactly-once"}
    assert (verdict["can_continue"], verdict["epoch"]) == (True, 0)
    assert not (tmp_path / "ck").exists()
    wrong = check(tmp_path, SAME.replace("hf.MemorySink()", "hf.ConsoleSink()"))
    assert wrong.exit_code == 4
    assert "exactly-once" in wrong.stderr


def test_another_job_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    other = HEAD + "from tests.spark.jobs import sequence_job\njob = sequence_job([], hf.MemorySink())\n"
    result = check(tmp_path, other)
    assert result.exit_code == 4
    (line,) = result.stderr.splitlines()
    assert f"the checkpoint in {checkpoint} belongs to job 'everything', not to 'sequences'" in line
    assert "dropped" not in result.stdout


def test_plans_left_behind_are_made_again_where_the_code_changed(checkpoint: Path, tmp_path: Path) -> None:
    # Without the last two commits, the plans of their epochs are left over, as after a crash.
    for name in sorted((checkpoint / "commits").iterdir())[-2:]:
        name.unlink()
    result = check(tmp_path, LATER, "--json", "--allow-dropped-state")
    assert said(result)[0]["job", "plans"] == "replanned"


def test_a_savepoint_is_checked_like_a_checkpoint(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast.checkpoint.store.savepoint_records import SavepointRecord

    manifest = to_manifest(Chain(open_storage(str(checkpoint))).load())
    record = SavepointRecord(
        id="s", job="another", identity="i", key_groups=128, commit=manifest.number, created_ms=0,
        written_by="", format="native", stopped=False, manifest=manifest,
    )  # fmt: skip
    monkeypatch.setattr(upgrade_check, "find_savepoint", lambda storage: record)
    monkeypatch.setattr(upgrade_check, "read_savepoint", lambda storage: record)
    result = check(tmp_path, LATER, "--json", "--allow-dropped-state")
    assert result.exit_code == 0, result.output
    found, _ = said(result)
    assert found["state", "everything.count"] == "converted"
    assert ("job", "plans") not in found


COUNTED = HEAD + (
    "import tests.fixtures.everything as e\njob = hf.Job(e.NAME)\n"
    "rows = job.source(hf.MemorySource([], schema='user string, n long'), uid='rows')\n"
    "rows.key_by('user', order_by='n').process(e.Everything(), uid='everything').sink("
    "hf.MemorySink(), uid='out')\n"
    "rows.key_by('user').aggregate(uid='sums', n=hf.count(), total=hf.count('n')).sink("
    "hf.MemorySink(), uid='totals')\n"
)


def test_another_aggregate_under_a_stored_name_is_told_where_it_is_known(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The frozen checkpoint does not know its aggregates: nothing is refused."""
    assert check(tmp_path, COUNTED).exit_code == 0
    origin = upgrade_check._origin

    def knowing(storage: Any) -> Any:
        found = origin(storage)
        graph = first_job(26, MemorySink()).graph()
        layouts = upgrade_check.state_layouts(graph, lambda: pytest.fail("Spark was started"))
        declared = {node.uid: upgrade_check.declaration(node, layouts[node.uid]) for node in graph.operators}
        in_force, _ = upgrade_check.examine(declared, found.view.operators, False)
        return dataclasses.replace(found, view=dataclasses.replace(found.view, operators=in_force.records))

    monkeypatch.setattr(upgrade_check, "_origin", knowing)
    assert check(tmp_path, SAME).exit_code == 0
    result = check(tmp_path, COUNTED, "--allow-dropped-state", "--json")
    assert result.exit_code == 4
    (problem,) = said(result)[1]["problems"]
    assert "operator 'sums' holds sum(n) in 'total', which is declared as count(n)" in problem


def test_a_schema_is_stored_with_all_that_came_before(checkpoint: Path) -> None:
    storage = open_storage(str(checkpoint))
    view = Chain(storage).load()
    graph = evolved.job(26, evolved.Second(), first_job, first_job).graph()
    layouts = upgrade_check.state_layouts(graph, lambda: pytest.fail("Spark was started"))
    declared = {node.uid: upgrade_check.declaration(node, layouts[node.uid]) for node in graph.operators}
    in_force, problems = upgrade_check.examine(declared, view.operators, True)
    assert not problems
    record = next(record for record in in_force.records if record.uid == "everything")
    assert record.generation == 1
    assert record.before == next(schema for schema in view.operators if schema.uid == "everything")
    assert record_of(lineage_of(record)) == record
    assert file_schema(record).before is None
    assert in_force.written_as("everything") == file_schema(record)
    assert (
        "state 'count' of operator 'everything' is converted: was 'seen'; long to decimal(20,0)"
        in in_force.news
    )
    assert not any("'extra'" in text for text in in_force.news)
    again, _ = upgrade_check.examine(declared, in_force.records, False)
    assert again.news == []
    assert again.records == in_force.records
    assert from_manifest(to_manifest(view), "").operators == view.operators


def test_a_transform_before_an_operator_needs_spark(checkpoint: Path) -> None:
    import holdfast as hf

    job = hf.Job("everything")
    rows = job.source(hf.MemorySource([], schema="user string, n long"), uid="rows")
    rows.transform(lambda frame: frame).key_by("user").aggregate(uid="sums", n=hf.count()).sink(
        hf.MemorySink(), uid="out"
    )

    def session() -> Any:
        raise ZeroDivisionError("asked for")

    with pytest.raises(ZeroDivisionError):
        rehearse(job.graph(), open_storage(str(checkpoint)), session)


TIMED = (
    HEAD
    + """
class Timed(everything.Everything):
    def on_timer(self, at, ctx):
        yield ("u", 0, 0, 0, 0, "", 0, 0.0)

everything.Everything = Timed
job = everything.job(26, hf.MemorySink())
"""
)


def test_a_function_that_gains_timers_goes_on_and_one_that_loses_them_is_refused(
    checkpoint: Path, tmp_path: Path
) -> None:
    gained = check(tmp_path, TIMED, "--json")
    assert gained.exit_code == 0, gained.output
    found, _ = said(gained)
    assert (
        found["state", "everything.event_timers"] == found["state", "everything.processing_timers"] == "added"
    )
    assert found["state", "everything.seen"] == "kept"

    view = Chain(open_storage(str(checkpoint))).load()
    (stored,) = [each for each in view.operators if each.uid == "everything"]
    lineage, timers = lineage_of(stored), timer_fields(100)
    layout = dataclasses.replace(lineage.layout, fields=(*lineage.layout.fields, *timers))
    lost = evolve(Lineage.begin(layout), Declared(lineage.layout), allow_dropped_state=False)
    assert len(lost.problems) == 2
    assert lost.problems[0].startswith(
        "state 'event_timers' of operator 'everything' is in the checkpoint (times to boolean) and not "
        "declared; keep on_timer, "
    )
    dropped = evolve(Lineage.begin(layout), Declared(lineage.layout), allow_dropped_state=True)
    assert not dropped.problems
    again = evolve(dropped.lineage, Declared(layout), allow_dropped_state=False)
    assert {field.name: field.id for field in again.lineage.layout.fields}["event_timers"] == 102, "a new id"


def test_a_watermark_that_is_gone_while_event_timers_wait_is_told(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert check(tmp_path, TIMED).exit_code == 0
    origin = upgrade_check._origin

    def waiting(storage: Any) -> Any:
        found = origin(storage)
        due = [
            replace(each, next_due=NextDue(event_us=1_767_268_800_000_000))
            for each in found.view.live_deltas("everything")
        ]
        deltas = {**found.view.deltas, **with_deltas({}, due)}
        return dataclasses.replace(found, view=dataclasses.replace(found.view, deltas=deltas))

    monkeypatch.setattr(upgrade_check, "_origin", waiting)
    result = check(tmp_path, TIMED, "--json")
    assert result.exit_code == 4
    (problem,) = said(result)[1]["problems"]
    assert "operator 'everything': the checkpoint holds event timers, the first for 2026-01-01" in problem
    assert check(tmp_path, TIMED, "--allow-dropped-state").exit_code == 0


def test_a_map_of_times_does_not_become_timers() -> None:
    timer, _ = timer_fields(1)
    before, now = (
        StateLayout("op", pa.schema([("k", pa.string())]), (dataclasses.replace(timer, kind=kind),))
        for kind in (StateKind.MAP, StateKind.TIMED)
    )
    (problem,) = evolve(Lineage.begin(before), Declared(now), allow_dropped_state=True).problems
    assert (
        "is declared as times to boolean, the checkpoint holds map state of timestamp to boolean" in problem
    )
