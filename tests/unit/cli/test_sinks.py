"""`holdfast sinks`: what sinks have shown, and the way out for one that is stuck or gone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from holdfast.admin import brief_term
from holdfast.admin import set_aside_rows as module
from holdfast.checkpoint.chain.checkpoint import open_checkpoint
from holdfast.checkpoint.chain.commits import Chain, Committed
from holdfast.checkpoint.chain.terms import claim, newest_ending, record_ending
from holdfast.checkpoint.chain.view import news
from holdfast.checkpoint.store import names
from holdfast.checkpoint.store.records import CommitRecord, EndedRecord, Extent, StagedFile
from holdfast.cli import options
from holdfast.cli.main import app
from holdfast.clock import SystemClock
from holdfast.ids import CommitNumber
from holdfast.runtime.control.request_server import Control
from holdfast.storage.checksums import checksum
from holdfast.storage.local_directory import LocalStorage
from holdfast.tasks.task_output import pack_rows
from tests.unit.runtime.control.control_kit import FakeJob


@pytest.fixture(autouse=True)
def no_leader_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(brief_term, "ANSWER_SECONDS", 0.0)


@pytest.fixture
def checkpoint(tmp_path: Path) -> LocalStorage:
    """Three committed epochs of ten rows in two parts: sink `good` has shown them, `stuck` only the first."""
    storage = LocalStorage(tmp_path / "ck")
    chain = open_checkpoint(storage, "job", 4, SystemClock(), identity="i").chain
    claim(storage, "run", "here", 1, 0)
    view = chain.load()
    for epoch in (1, 2, 3):
        staged = tuple(_staged(storage, epoch, part) for part in (0, 1))
        record = CommitRecord(
            term=1, run="run", first_epoch=epoch, last_epoch=epoch, attempts={str(epoch): 1}, clock_ms=epoch,
            parallelism=1, fingerprint="f", positions={}, staged=staged,
            published_through={"good": 3, "stuck": 1},
        )  # fmt: skip
        done = chain.commit(view, record)
        assert isinstance(done, Committed)
        view = done.view
    record_ending(
        storage,
        EndedRecord(term=1, run="run", at_ms=1, ending="failed", commit=1, last_epoch=1, published=True),
    )
    return storage


def _staged(storage: LocalStorage, epoch: int, part: int) -> StagedFile:
    data = pack_rows(pa.table({"n": [epoch * 100 + part * 10 + i for i in range(5)]}))
    name = f"data/{epoch:012d}/{part}"
    storage.put(name, data)
    extent = Extent(object=name, offset=0, length=len(data), checksum=checksum(data))
    return StagedFile(
        stream="s", epoch=epoch, part=part, extent=extent, rows=5, sinks=("good", "stuck"), input="i"
    )


def called(*arguments: str, code: int = 0, width: int = 80) -> Any:
    done = CliRunner().invoke(app, ["sinks", *arguments], env={"COLUMNS": str(width)})
    assert done.exit_code == code, done.output + (done.stderr or "")
    return done


def test_sinks_are_listed_with_what_waits_for_them(checkpoint: LocalStorage) -> None:
    done = called("list", "--checkpoint", checkpoint.url, "--json")
    good, stuck = (json.loads(line) for line in done.stdout.splitlines())
    by_commit = {"says": "commit", "full": False, "unavailable": None, "refused": None, "by_lane": False}
    assert good == {"sink": "good", "shown": 3, "waiting_epochs": [], "rows": 0, **by_commit}
    assert stuck == {"sink": "stuck", "shown": 1, "waiting_epochs": [2, 3], "rows": 20, **by_commit}
    said = called("list", "--checkpoint", checkpoint.url).stdout
    assert "2 to 3" in said
    assert "as the newest commit says; no run answers" in " ".join(said.split())


REFUSED = {"since_ms": 0, "tries": 2, "reason": "the table is gone; make it"}
AS_IT_SHOULD = {"bytes": 0, "full": False, "unavailable": None, "refused": None, "latency": None}


def test_while_a_run_lives_sinks_are_listed_by_its_own_word(checkpoint: LocalStorage) -> None:
    """The newest commit is older than what was shown since, and knows nothing of a refusal."""
    job = FakeJob(checkpoint)
    good = {**AS_IT_SHOULD, "through": 4, "epochs": 0}
    stuck = {**AS_IT_SHOULD, "through": 2, "epochs": 2, "bytes": 50, "refused": REFUSED}
    new = {**AS_IT_SHOULD, "through": 0, "epochs": 0}
    job.monitor.update(sinks={"good": good, "stuck": stuck, "new": new})
    term = claim(checkpoint, "run-2", "here", 1, 0)
    with Control(checkpoint, term, job, SystemClock(), lambda text: None, grace_seconds=1):
        done = called("list", "--checkpoint", checkpoint.url, "--json")
        said = called("list", "--checkpoint", checkpoint.url, width=200).stdout
    by_uid = {each["sink"]: each for each in map(json.loads, done.stdout.splitlines())}
    assert {each["says"] for each in by_uid.values()} == {"run"}
    assert [by_uid[uid]["shown"] for uid in ("good", "new", "stuck")] == [4, 0, 2]
    assert (by_uid["stuck"]["waiting_epochs"], by_uid["stuck"]["rows"]) == ([3], 10)
    assert by_uid["stuck"]["refused"] == REFUSED
    assert "sinks, as its run says" in said
    rows = [line.replace("│", " ").split() for line in said.splitlines()]
    assert ["stuck", "REFUSED", "2", "3", "10"] in rows
    assert "sink stuck: REFUSED for" in said
    assert "the table is gone; make it (tried 2 times, again by `holdfast sinks retry`)" in said
    assert checkpoint.list("requests/") == []


def test_rows_that_a_sink_cannot_show_are_put_aside_whole_and_the_job_goes_on(
    checkpoint: LocalStorage, tmp_path: Path
) -> None:
    aside = tmp_path / "aside"
    done = called("set-aside", "stuck", "--checkpoint", checkpoint.url, "--to", str(aside), "--yes")
    assert "20 rows of epochs 2 to 3" in done.stdout
    numbers = pq.read_table(aside).column("n").to_pylist()
    assert numbers == [epoch * 100 + part * 10 + i for epoch in (2, 3) for part in (0, 1) for i in range(5)]
    after = Chain(checkpoint).load()
    assert after.published_through == {"good": 3, "stuck": 3}
    assert list(after.staged) == []
    ended = newest_ending(checkpoint)
    assert ended is not None
    assert (ended.term, ended.ending) == (2, "failed"), "how the run before has ended stays known"


def test_that_a_part_has_come_to_its_end_stays_known(checkpoint: LocalStorage, tmp_path: Path) -> None:
    chain = Chain(checkpoint)
    view = chain.load()
    chain.commit(view, news(view, term=1, run="run", published_through=view.published_through, ended=True))
    called("set-aside", "stuck", "--checkpoint", checkpoint.url, "--to", str(tmp_path / "a"), "--yes")
    after = Chain(checkpoint).load()
    assert (after.number, after.ended) == (5, True)


def test_only_the_epochs_that_are_named_are_put_aside(checkpoint: LocalStorage, tmp_path: Path) -> None:
    to = str(tmp_path / "aside")
    called("set-aside", "stuck", "--checkpoint", checkpoint.url, "--to", to, "--through", "2", "--yes")
    after = Chain(checkpoint).load()
    assert after.published_through["stuck"] == 2
    assert {file.epoch for file in after.staged} == {3}


def test_what_a_rewind_kept_for_a_sink_is_put_aside_up_to_what_is_computed_again(
    checkpoint: LocalStorage, tmp_path: Path
) -> None:
    chain = Chain(checkpoint)
    view = chain.load()
    settled = {"good": 3, "stuck": 3}
    told = news(view, term=1, run="run", published_through=view.published_through)
    view = chain.commit(view, msgspec.structs.replace(told, staged_through=settled)).view
    lost = [file for file in view.staged if file.epoch == 3]
    chain.rewind(view.head, CommitNumber(1), term=1, run="run", damaged=lost)
    called("set-aside", "stuck", "--checkpoint", checkpoint.url, "--to", str(tmp_path / "aside"), "--yes")
    after = Chain(checkpoint).load()
    assert (after.last_epoch, after.published_through["stuck"]) == (1, 2)
    assert pq.read_table(tmp_path / "aside").num_rows == 10
    assert after.settled.lost == {"stuck": (3,)}


def test_interrupted_before_the_commit_it_is_done_again(
    checkpoint: LocalStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ("set-aside", "stuck", "--checkpoint", checkpoint.url, "--to", str(tmp_path / "a"), "--yes")
    with monkeypatch.context() as patch:
        patch.setattr(module, "_commit", lambda *given: exec("raise KeyboardInterrupt"))
        CliRunner().invoke(app, ["sinks", *arguments])
    assert Chain(checkpoint).load().published_through["stuck"] == 1
    called(*arguments)
    assert pq.read_table(tmp_path / "a").num_rows == 20


def test_rows_that_another_job_put_aside_are_not_overwritten(
    checkpoint: LocalStorage, tmp_path: Path
) -> None:
    aside = tmp_path / "aside"
    aside.mkdir()
    (aside / "stuck-000000000003.parquet").write_bytes(b"of another job")
    asked = ("set-aside", "stuck", "--checkpoint", checkpoint.url, "--to", str(aside), "--yes")
    assert "holds other rows, of another job or copy" in called(*asked, code=4).stderr
    assert (aside / "stuck-000000000003.parquet").read_bytes() == b"of another job"
    assert Chain(checkpoint).load().published_through["stuck"] == 1


def test_nothing_is_put_aside_beside_a_running_job(
    checkpoint: LocalStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(brief_term, "status_of_leader", lambda *given, **more: {"phase": "running"})
    to = str(tmp_path / "aside")
    done = called("set-aside", "stuck", "--checkpoint", checkpoint.url, "--to", to, "--yes", code=4)
    assert "the job is running; stop it" in done.stderr
    assert not Path(to).exists()


def test_a_leader_that_is_silent_is_left_alone_unless_it_is_known_to_be_gone(
    checkpoint: LocalStorage, tmp_path: Path
) -> None:
    checkpoint.delete([names.ended(1)])
    asked = ("set-aside", "stuck", "--checkpoint", checkpoint.url, "--to", str(tmp_path / "a"), "--yes")
    assert "--not-running" in called(*asked, code=75).stderr
    assert Chain(checkpoint).load().number == 3
    called(*asked, "--not-running")
    assert Chain(checkpoint).load().number == 4


@pytest.mark.parametrize(
    ("sink", "yes", "code", "told"),
    [
        ("good", True, 4, "no rows wait for sink 'good'"),
        ("typo", True, 4, "knows no sink 'typo'; it has good, stuck"),
        ("stuck", False, 2, "nothing was written: there is no terminal to ask at"),
    ],
)
def test_what_cannot_be_meant_is_refused_and_nothing_is_written(
    checkpoint: LocalStorage, tmp_path: Path, sink: str, yes: bool, code: int, told: str
) -> None:
    to = tmp_path / "aside"
    asked = ["set-aside", sink, "--checkpoint", checkpoint.url, "--to", str(to), *(["--yes"] if yes else [])]
    before = checkpoint.list("")
    assert told in called(*asked, code=code).stderr
    assert not to.exists()
    assert checkpoint.list("") == before


@pytest.mark.parametrize(("answer", "code", "after"), [("n\n", 1, 3), ("\n", 1, 3), ("y\n", 0, 4)])
def test_a_person_at_a_terminal_is_asked(
    checkpoint: LocalStorage,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    answer: str,
    code: int,
    after: int,
) -> None:
    monkeypatch.setattr(options, "at_a_terminal", lambda: True)
    to = str(tmp_path / "aside")
    asked = ["sinks", "set-aside", "stuck", "--checkpoint", checkpoint.url, "--to", to]
    done = CliRunner().invoke(app, asked, input=answer)
    assert done.exit_code == code, done.stderr
    assert f"never show these rows, which will be written to {to}; go on? [y/N]" in done.stderr
    assert ("nothing was written" in done.stderr) == (code == 1)
    assert Chain(checkpoint).load().number == after


def test_without_a_terminal_it_says_what_would_be_done_before_it_asks_for_a_word(
    checkpoint: LocalStorage, tmp_path: Path
) -> None:
    to = str(tmp_path / "aside")
    asked = ("set-aside", "stuck", "--checkpoint", checkpoint.url, "--to", to, "--through", "2")
    done = called(*asked, code=2)
    assert done.stdout.startswith("to be put aside: 10 rows of epoch 2, ")
    assert f"which wait for sink 'stuck'; to be written to {to}" in done.stdout
    assert "look at what would be done, then add --yes" in done.stderr
    assert called(*asked, "--json", code=2).stdout == ""
    assert "10 rows of epoch 2 are in" in called(*asked, "--yes").stdout


def test_nothing_but_the_rows_is_left_where_they_were_put(checkpoint: LocalStorage, tmp_path: Path) -> None:
    aside = tmp_path / "aside"
    called("set-aside", "stuck", "--checkpoint", checkpoint.url, "--to", str(aside), "--yes")
    assert sorted(path.name for path in aside.iterdir()) == [
        f"stuck-{epoch:012d}.parquet" for epoch in (2, 3)
    ]


def test_check_tells_that_a_removed_sink_leaves_rows_behind(checkpoint: LocalStorage, tmp_path: Path) -> None:
    file = tmp_path / "app.py"
    file.write_text(
        "import holdfast as hf\n"
        "job = hf.Job('job')\n"
        "job.source(hf.MemorySource([1]), uid='rows').sink(hf.MemorySink(), uid='good')\n"
    )
    done = CliRunner().invoke(app, ["check", str(file), "--checkpoint", checkpoint.url])
    assert done.exit_code == 4, done.output
    assert "20 rows of epochs 2 to 3 were committed for sink 'stuck'" in " ".join(done.output.split())


def test_commits_that_the_job_keeps_are_not_given_up_by_it(checkpoint: LocalStorage, tmp_path: Path) -> None:
    """A job with --retain 50 keeps more than a job does that says nothing."""
    chain = Chain(checkpoint, retain=50)
    for _ in range(12):
        view = chain.load()
        record = news(view, term=1, run="run", published_through=view.published_through)
        assert isinstance(chain.commit(view, record), Committed)
    to = str(tmp_path / "aside")
    called("set-aside", "stuck", "--checkpoint", checkpoint.url, "--to", to, "--yes")
    after = Chain(checkpoint).load()
    assert (after.number, after.retained_from) == (16, 1)
