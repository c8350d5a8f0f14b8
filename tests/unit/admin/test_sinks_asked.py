"""What sinks are asked before a start: their lanes, of a job that does not run, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from holdfast.admin.sinks_asked import Word, ask_sinks
from holdfast.checkpoint.chain.commits import Chain
from holdfast.checkpoint.chain.terms import claim, record_ending
from holdfast.checkpoint.store.records import EndedRecord
from holdfast.cli.main import app
from holdfast.connectors.lanes import LaneWriter
from holdfast.errors import DefinitionError, Unavailable
from holdfast.storage.local_directory import LocalStorage
from holdfast.testing.sqlite_lanes import SqliteLaneSink
from tests.unit.runtime.epoch.test_lane_sinks import World


@pytest.fixture
def world(tmp_path: Path) -> World:
    """An epoch is committed and shown, and the run has ended."""
    world = World(tmp_path)
    world.commit((0, [1, 2]), (1, [3]))
    world.tell(world.start())
    end(world.storage)
    return world


def end(storage: LocalStorage) -> None:
    term = claim(storage, "run", "here", 1, 0)
    ended = EndedRecord(
        term=term, run="run", at_ms=1, ending="stopped", commit=2, last_epoch=1, published=True
    )
    record_ending(storage, ended)


def asked(world: World, sink: Any = None) -> Word:
    nodes = [SimpleNamespace(uid=uid, sink=sink or world.sink) for uid in ("out", "added since")]
    graph: Any = SimpleNamespace(name="job", sinks=nodes)
    words = ask_sinks(graph, Chain(world.storage), world.view, "id", "exactly-once")
    assert list(words) == ["out"], "a sink that the job had not before has nothing to say"
    return words["out"]


def test_a_sink_that_goes_with_the_checkpoint_says_what_it_shows(world: World) -> None:
    world.commit((0, [4]))
    assert asked(world) == Word(1)


def test_nothing_is_asked_while_a_run_may_live(world: World) -> None:
    claim(world.storage, "the next run", "here", 1, 0)
    refusing = Refusing(DefinitionError("nobody is to ask this"))
    assert asked(world, refusing) == Word(None, "not asked: the job may run")


def test_a_sink_that_has_no_lanes_is_not_opened(world: World) -> None:
    whole: Any = SimpleNamespace(exactly_once=True, publisher=lambda *_: pytest.fail("it was opened"))
    assert asked(world, whole) == Word(None, "not asked: `run` alone does that")


def test_a_refusal_is_why_a_start_would_be_refused(world: World) -> None:
    refusal = DefinitionError("another table has the name; put it back")
    assert asked(world, Refusing(refusal)).problem == f"sink 'out': {refusal}"
    world.alter("update marks set epoch = 9 where lane = 5")
    word = asked(world)
    assert (word.through, "sink 'out' shows rows of epochs up to 9 in lane 5" in word.problem) == (None, True)


def test_a_server_that_is_away_is_no_reason_not_to_start(world: World) -> None:
    word = asked(world, Refusing(Unavailable("nobody listens at db.example")))
    told = "its server is not there, which `run` waits for: nobody listens at db.example"
    assert word == Word(None, told)


def test_rows_that_a_sink_has_lost_and_that_would_be_shown_again_are_told(world: World) -> None:
    world.alter("delete from marks")
    news = "SINK WENT BACK: 'out' shows less than it had shown, in lanes 0, 1; 3 rows"
    assert asked(world).told.startswith(news)


class Refusing(SqliteLaneSink):
    """Says nothing but this."""

    def __init__(self, failure: Exception) -> None:
        object.__setattr__(self, "failure", failure)
        super().__init__("nowhere.db")

    def lane_writer(self, job: str, uid: str) -> LaneWriter:  # type: ignore[override]
        def refuse(term: int) -> Any:
            raise self.failure  # type: ignore[attr-defined]

        writer: Any = SimpleNamespace(open=refuse)
        return writer


def checked(world: World, tmp_path: Path, *more: str) -> tuple[int, str, str]:
    (tmp_path / "app.py").write_text(
        "import holdfast as hf\n"
        "from holdfast.testing.sqlite_lanes import SqliteLaneSink\n"
        "job = hf.Job('job')\n"
        f"rows = job.source({SOURCE}, uid='rows')\n"
        f"rows.sink(SqliteLaneSink({world.sink.path!r}), uid='out')\n"
        "rows.sink(hf.MemorySink(), uid='whole')\n"
    )
    asked = ["check", str(tmp_path / "app.py"), "--checkpoint", world.storage.url, *more]
    done = CliRunner().invoke(app, asked)
    return done.exit_code, done.stdout, done.stderr


SOURCE = "hf.MemorySource([], schema='n long')"


def test_check_tells_what_sinks_say_and_which_were_not_asked(world: World, tmp_path: Path) -> None:
    code, out, err = checked(world, tmp_path)
    assert code == 0, err
    assert out.endswith("`run` can go on from here; nothing was touched\n")
    *findings, verdict = map(json.loads, checked(world, tmp_path, "--json")[1].splitlines())
    details = {each["name"]: each["detail"] for each in findings if each["kind"] == "sink"}
    assert details["out"] == "shows epochs up to 1 of 1, by its own word"
    assert verdict["unasked"] == []
    world.alter("update marks set epoch = 9 where lane = 5")
    code, _, err = checked(world, tmp_path)
    assert (code, "shows rows of epochs up to 9 in lane 5" in err) == (4, True)
    claim(world.storage, "the next run", "here", 1, 0)
    code, out, err = checked(world, tmp_path)
    assert code == 0, err
    assert "not asked what they show, which `run` does: sink 'out'" in out


def test_what_a_source_refuses_before_a_start_is_told_by_check(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = f"hf.FileSource({str(tmp_path / 'nowhere')!r}, format='json', schema='n long')"
    monkeypatch.setitem(globals(), "SOURCE", missing)
    code, _, err = checked(world, tmp_path)
    assert code == 4
    assert "nowhere does not exist; correct the path" in err
