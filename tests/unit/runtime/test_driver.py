"""What the driver does before, between and after times of leading, without Spark: leading is played here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import msgspec
import pytest
from msgspec.structs import replace as replace_record

import holdfast as hf
from holdfast.checkpoint.chain.commits import Chain, Committed
from holdfast.checkpoint.chain.settled import Settled
from holdfast.checkpoint.chain.terms import claim, newest_ending, newest_term
from holdfast.checkpoint.chain.view import EMPTY, CheckpointView
from holdfast.checkpoint.log.incidents import read_failures
from holdfast.checkpoint.store import names
from holdfast.checkpoint.store.records import (
    ChannelState,
    CommitRecord,
    Extent,
    OperatorSchema,
    SentFile,
    StagedFile,
)
from holdfast.clock import SystemClock
from holdfast.errors import (
    CorruptionError,
    EpochFailed,
    EpochInterrupted,
    FencedOut,
    PoisonEpoch,
    RestoreError,
    RetryableError,
    SessionLost,
    SinkRefused,
    StopUnfinished,
    StorageError,
    Unpublished,
    WorkingStateLost,
)
from holdfast.runtime import driver as module
from holdfast.runtime import stored_fit
from holdfast.runtime.control.run_flags import Wishes
from holdfast.runtime.driver import Driver
from holdfast.runtime.epoch_loop import Ending
from holdfast.runtime.leader_context import ToldToStop
from holdfast.runtime.parts.damaged_epochs import EpochDamaged, EpochsAsked, Request
from holdfast.runtime.progress import Monitor
from holdfast.runtime.recovery import Recovery
from holdfast.runtime.restart_strategy import ExponentialDelay
from holdfast.runtime.settings import check_settings
from holdfast.state.contract import NextDue
from holdfast.storage.local_directory import LocalStorage
from holdfast.storage.urls import open_storage
from tests.unit.checkpoint.kept import delta


class Graph:
    name, nodes, sources, sinks, operators, outlets = "job", (), (), (), (), ()


class Compiled:
    graph = Graph
    forms: ClassVar[dict[str, Any]] = {}
    sinks: ClassVar[dict[str, str]] = {}


class Elsewhere(Graph):
    name = "other"


class Played:
    """Leading that does what it is told; `running` is the epoch that it is in."""

    def __init__(self, act: Callable[[Played], Ending], view: CheckpointView) -> None:
        self._act, self.view, self.running = act, view, 0
        self.replayed_through = 0
        self.unpublished: dict[str, int] = {}
        self.uncommitted = 0
        self.refused: dict[str, str] = {}

    def run(self) -> Ending:
        return self._act(self)


class Run:
    """A driver that leads as these acts say, one after the other."""

    def __init__(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, acts: list[Any], of: type[Graph] = Graph
    ) -> None:
        monkeypatch.setattr(module, "compile_graph", lambda *_: Compiled)
        monkeypatch.setattr(module, "revived", lambda spark, name, own: spark)
        monkeypatch.setattr(module, "EpochLoop", lambda context, view, shards: Played(acts.pop(0), view))
        self.storage = open_storage(str(tmp_path / "ck"))
        self.wishes = Wishes()
        settings = check_settings(
            tmp_path / "ck", {"parallelism": 1, "restart": ExponentialDelay(initial="1ms", maximum="1ms")}
        )
        clock = SystemClock()
        graph: Any = of()
        spark: Any = object()
        self.said: list[str] = []
        monitor = self.monitor = Monitor("job", clock, [], [self.said.append])
        self.driver = Driver(
            graph, settings, self.storage, spark,
            own_session=False, run="r", clock=clock, monitor=monitor, wishes=self.wishes,
        )  # fmt: skip

    def run(self) -> None:
        controls: Any = self
        self.driver.run(controls)


def stop(led: Played) -> Ending:
    return Ending.STOPPED


def epoch(number: int, **more: Any) -> CommitRecord:
    """The commit of one epoch."""
    return CommitRecord(
        term=1, run="r", first_epoch=number, last_epoch=number, attempts={str(number): 1}, clock_ms=1,
        parallelism=1, fingerprint="f", positions={}, **more,
    )  # fmt: skip


def commit(run: Run, *records: CommitRecord) -> None:
    """What a leader that runs now has committed."""
    chain = Chain(run.storage, manifest_every=2)
    for record in records:
        done = chain.commit(chain.load(), record)
        assert isinstance(done, Committed)


def in_channel(epoch: int) -> SentFile:
    where = Extent(object=f"data/{epoch}/rows", offset=0, length=1, checksum="")
    return SentFile(channel="in", epoch=epoch, part=0, extent=where, rows=1)


def test_damage_in_a_channel_is_asked_for_without_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaged(led: Played) -> Ending:
        raise EpochDamaged(in_channel(3), "main", planned=1, begins=True)

    went_on: list[CheckpointView] = []

    def goes_on(led: Played) -> Ending:
        went_on.append(led.view)
        return Ending.STOPPED

    run = Run(tmp_path, monkeypatch, [damaged, goes_on])
    run.run()
    assert [(view.asked, view.parallelism) for view in went_on] == [({"in": (3, 1)}, 1)]
    assert read_failures(run.storage) == []
    again = Run(tmp_path, monkeypatch, [damaged, damaged])
    with pytest.raises(RestoreError, match=r"epoch 3 of .*'in', sent by part 'main'.*which was asked for it"):
        again.run()
    assert read_failures(run.storage)[-1].kind == "RestoreError"


def test_a_request_of_a_part_after_is_answered_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def asked(led: Played) -> Ending:
        commit(run, msgspec.structs.replace(epoch(1), channels={"out": ChannelState(through=1)}, sent=()))
        raise EpochsAsked([Request("out", "scoring", 1, 7)])

    run = Run(tmp_path, monkeypatch, [asked, stop])
    run.run()
    assert Chain(run.storage).load().channels["out"].answered == 7
    assert read_failures(run.storage) == []


def test_storage_that_fails_while_damage_is_looked_into_does_not_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaged(led: Played) -> Ending:
        monkeypatch.setattr(Recovery, "load", unreachable)
        raise CorruptionError("a file is damaged")

    load = Recovery.load

    def unreachable(self: Recovery) -> CheckpointView:
        monkeypatch.setattr(Recovery, "load", load)
        raise StorageError("storage is away; try again")

    run = Run(tmp_path, monkeypatch, [damaged, stop])
    run.run()
    assert [record.decision for record in read_failures(run.storage)] == ["restart", "stopped"]


def test_the_epoch_that_failed_is_the_one_that_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nothing is committed yet: with a checkpoint interval, many epochs wait for one commit.
    def fail(led: Played) -> Ending:
        led.running = 51
        raise EpochFailed("out of memory; nothing of it became visible")

    with pytest.raises(PoisonEpoch, match=r"epoch 51 fails .* `holdfast skip --epoch 51 --checkpoint "):
        Run(tmp_path, monkeypatch, [fail, fail, fail]).run()


def test_a_sink_that_is_away_for_long_makes_no_epoch_poison(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(led: Played) -> Ending:
        raise ConnectionRefusedError("the sink is away")

    Run(tmp_path, monkeypatch, [*[refused] * 6, stop]).run()


def test_a_job_on_another_jobs_checkpoint_is_told_so_whatever_state_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def with_state(led: Played) -> Ending:
        kept = OperatorSchema(uid="sums", key=(("k", "long"),), states=())
        Chain(run.storage).commit(EMPTY, epoch(1, operators=(kept,)))
        return Ending.STOPPED

    run = Run(tmp_path, monkeypatch, [with_state])
    run.run()
    with pytest.raises(RestoreError) as refused:
        Run(tmp_path, monkeypatch, [stop], of=Elsewhere).run()
    assert str(refused.value) == (
        f"the checkpoint in {tmp_path}/ck belongs to job 'job', not to 'other'; "
        "choose another place for the checkpoint of 'other'"
    )


def test_restarts_are_counted_over_all_starts_and_a_start_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(led: Played) -> Ending:
        raise ConnectionRefusedError("the sink is away")

    first = Run(tmp_path, monkeypatch, [fail, fail, fail, stop])
    first.run()
    assert first.monitor.progress.restarts == 3
    second = Run(tmp_path, monkeypatch, [stop])
    second.run()
    assert second.monitor.progress.restarts == 3


def test_a_run_that_ended_is_known_to_be_over_and_how(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(led: Played) -> Ending:
        assert newest_ending(first.storage) is None, "the run before it is over, this one is not"
        raise RestoreError("something is gone")

    first = Run(tmp_path, monkeypatch, [stop])
    first.run()
    ended = newest_ending(first.storage)
    assert ended is not None
    assert (ended.term, ended.ending, ended.last_epoch, ended.published) == (1, "stopped", 0, True)
    with pytest.raises(RestoreError):
        Run(tmp_path, monkeypatch, [gone]).run()
    ended = newest_ending(first.storage)
    assert ended is not None
    assert (ended.term, ended.ending) == (2, "failed")
    Run(tmp_path, monkeypatch, [lambda led: Ending.EXHAUSTED]).run()
    ended = newest_ending(first.storage)
    assert ended is not None
    assert (ended.term, ended.ending) == (3, "exhausted")
    assert len(first.storage.list(names.ENDED)) == 1


def test_a_sink_behind_the_commits_is_not_called_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Sinking(Graph):
        sinks: Any = (SimpleNamespace(uid="out"),)

    def behind(led: Played) -> Ending:
        led.view = CheckpointView(number=3, last_epoch=15)
        run.monitor.update(published_through={"out": 14})
        return Ending.STOPPED

    run = Run(tmp_path, monkeypatch, [behind], of=Sinking)
    run.run()
    ended = newest_ending(run.storage)
    assert ended is not None
    assert not ended.published


@pytest.mark.parametrize("savepoint", [False, True])
def test_a_stop_that_leaves_epochs_unpublished_says_so_and_leaves_no_savepoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, savepoint: bool
) -> None:
    def behind(led: Played) -> Ending:
        led.view = CheckpointView(number=3, last_epoch=15)
        led.unpublished = {"out": 4}
        return Ending.STOPPED

    run = Run(tmp_path, monkeypatch, [behind])
    if savepoint:
        run.wishes.leave_savepoint(str(tmp_path / "sp"))
    with pytest.raises(Unpublished, match="4 epochs unpublished in sink 'out'") as ended:
        run.run()
    assert ("no savepoint was left" in str(ended.value)) is savepoint
    assert not (tmp_path / "sp").exists()
    stored = newest_ending(run.storage)
    assert (stored is not None, run.monitor.progress.phase) == (True, "stopped")
    assert stored is not None
    assert stored.ending == "stopped"


def test_a_stop_says_how_many_epochs_are_not_committed_and_leaves_no_savepoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def held_up(led: Played) -> Ending:
        led.view = CheckpointView(number=3, last_epoch=15)
        led.uncommitted = 2
        return Ending.STOPPED

    run = Run(tmp_path, monkeypatch, [held_up])
    run.wishes.leave_savepoint(str(tmp_path / "sp"))
    with pytest.raises(Unpublished, match=r"2 epochs run and not committed.* no savepoint was left"):
        run.run()
    assert not (tmp_path / "sp").exists()


def test_a_run_that_has_come_to_its_end_with_a_sink_that_refuses_has_not_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts that read from it come to their end, too."""

    def refused(led: Played) -> Ending:
        led.view = CheckpointView(number=3, last_epoch=15)
        led.unpublished, led.refused = {"out": 4}, {"out": "sink 'out' cannot show epoch 12"}
        return Ending.EXHAUSTED

    run = Run(tmp_path, monkeypatch, [refused])
    with pytest.raises(SinkRefused, match="sink 'out' cannot show epoch 12") as ended:
        run.run()
    assert (ended.value.exit_code, run.monitor.progress.phase) == (2, "stopped")
    stored = newest_ending(run.storage)
    assert stored is not None
    assert (stored.ending, stored.commit) == ("exhausted", 3)


def test_a_stop_while_a_server_is_waited_for_at_the_start_ends_in_good_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def waits(led: Played) -> Ending:
        raise ToldToStop("told to stop while waiting for the server of sink 'out'")

    run = Run(tmp_path, monkeypatch, [waits])
    run.run()
    stored = newest_ending(run.storage)
    assert stored is not None
    assert stored.ending == "stopped"


@pytest.mark.parametrize(("shown", "settled"), [(20, 0), (15, 20)])
def test_no_job_stops_with_a_savepoint_while_it_replays_what_sinks_show(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shown: int, settled: int
) -> None:
    def replaying(led: Played) -> Ending:
        led.view = CheckpointView(
            number=3, last_epoch=15, published_through={"out": shown}, settled=Settled({"out": settled})
        )
        return Ending.STOPPED

    run = Run(tmp_path, monkeypatch, [replaying])
    run.wishes.leave_savepoint(str(tmp_path / "sp"))
    with pytest.raises(RestoreError, match="settled up to epoch 20"):
        run.run()
    assert not (tmp_path / "sp").exists()


def test_state_that_was_lost_is_had_again_and_the_second_time_that_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(led: Played) -> Ending:
        raise WorkingStateLost("the working state of operator 'n' is gone; its rows are read again")

    run = Run(tmp_path, monkeypatch, [lost, stop])
    run.run()
    assert any(line.startswith("RESTORE: the working state of operator 'n'") for line in run.said), run.said
    assert run.monitor.progress.restarts == 0
    again = Run(tmp_path / "again", monkeypatch, [lost, lost, stop])
    again.run()
    assert again.monitor.progress.restarts == 1


def test_no_job_stops_with_a_savepoint_of_what_the_next_leader_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def superseded(led: Played) -> Ending:
        claim(run.storage, "other", "h", 1, 0)
        return Ending.STOPPED

    run = Run(tmp_path, monkeypatch, [superseded])
    run.wishes.leave_savepoint(str(tmp_path / "sp"))
    with pytest.raises(FencedOut):
        run.run()
    assert not (tmp_path / "sp").exists()


def test_a_leader_that_fails_because_it_was_replaced_says_so_and_is_not_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its sinks show what the next leader did: a supervisor that is told to try again takes the lead back."""

    def overtaken(led: Played) -> Ending:
        claim(run.storage, "other", "h", 1, 0)
        raise RetryableError("another run has shown epoch 5 while this one was about to show epoch 2")

    run = Run(tmp_path, monkeypatch, [overtaken, stop])
    with pytest.raises(FencedOut):
        run.run()
    assert not read_failures(run.storage)


def test_a_damaged_savepoint_is_what_the_run_ends_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaged(*args: Any) -> None:
        raise CorruptionError("data/1 of the savepoint is damaged")

    run = Run(tmp_path, monkeypatch, [])
    monkeypatch.setattr(module, "seed", damaged)
    with pytest.raises(CorruptionError, match="of the savepoint"):
        run.run()


def test_an_upgrade_that_would_leave_rows_behind_does_not_depose_the_running_leader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job beside it still has the sink that the rows wait for: it must be able to go on."""
    Run(tmp_path, monkeypatch, [stop]).run()
    beside = Run(tmp_path, monkeypatch, [stop])
    extent = Extent(object="data/2/x", offset=0, length=0, checksum="")
    waiting = StagedFile(stream="s", epoch=2, part=0, extent=extent, rows=3, sinks=("gone",))
    commit(beside, epoch(1, published_through={"gone": 1}), epoch(2, staged=(waiting,)))
    with pytest.raises(RestoreError, match=r"3 rows of epochs 2 to 2 .* sink 'gone'"):
        beside.run()
    leader = newest_term(beside.storage)
    assert leader is not None
    assert leader.term == 1


class Timed(hf.KeyedFunction):
    output = "user string"

    def process(self, row: Any, ctx: Any) -> Any:
        return None

    def on_timer(self, at: Any, ctx: Any) -> Any:
        return None


def test_a_job_whose_event_timers_would_never_fire_is_refused_before_it_leads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Run(tmp_path, monkeypatch, [stop]).run()
    beside = Run(tmp_path, monkeypatch, [stop])
    kept = OperatorSchema(uid="op", key=(("user", "string"),), states=())
    open_timer = msgspec.structs.replace(delta(1, operator="op"), next_due=NextDue(event_us=7))
    commit(beside, epoch(1, deltas=(open_timer,), operators=(kept,)))
    job = hf.Job("job")
    job.source(hf.MemorySource([], schema="user string"), uid="s").key_by("user").process(Timed(), uid="op")
    monkeypatch.setattr(beside.driver, "_graph", job.graph())
    monkeypatch.setattr(stored_fit, "examine", lambda *given: (None, []))
    with pytest.raises(RestoreError, match=r"operator 'op': .* event timers would never fire; declare"):
        beside.run()
    leader = newest_term(beside.storage)
    assert leader is not None
    assert leader.term == 1


def test_the_chain_is_read_once_at_a_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Run(tmp_path, monkeypatch, [stop]).run()
    run = Run(tmp_path, monkeypatch, [stop])
    commit(run, epoch(1), epoch(2))
    read: list[str] = []
    get = LocalStorage.get
    monkeypatch.setattr(
        LocalStorage, "get", lambda self, name, *at: read.append(name) or get(self, name, *at)
    )
    run.run()
    assert len([name for name in read if name.startswith(names.MANIFESTS)]) == 1


def test_what_is_committed_between_the_look_and_the_claim_is_gone_on_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def newest(led: Played) -> Ending:
        seen.append(led.view.number)
        return Ending.STOPPED

    def claimed_late(*given: Any, **more: Any) -> int:
        commit(run, epoch(3))
        return claim(*given, **more)

    seen: list[int] = []
    Run(tmp_path, monkeypatch, [stop]).run()
    run = Run(tmp_path, monkeypatch, [newest])
    commit(run, epoch(1), epoch(2))
    monkeypatch.setattr(module, "claim", claimed_late)
    run.run()
    assert seen == [3]


def test_a_run_leads_though_the_terms_of_the_commits_are_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would be taken for an older leader than the one that wrote them."""
    Run(tmp_path, monkeypatch, [stop]).run()
    run = Run(tmp_path, monkeypatch, [stop])
    commit(run, replace_record(epoch(1), term=5))
    run.storage.delete([entry.name for entry in run.storage.list(names.TERMS)])
    run.run()
    leader = newest_term(run.storage)
    assert leader is not None
    assert leader.term == 6


def test_damage_that_other_records_stand_in_for_is_told_though_the_chain_is_read_before_the_claim(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Run(tmp_path, monkeypatch, [stop]).run()
    run = Run(tmp_path, monkeypatch, [stop])
    commit(run, epoch(1), epoch(2))
    (manifest,) = run.storage.list(names.MANIFESTS)
    (tmp_path / "ck" / manifest.name).write_bytes(b"damaged")
    run.run()
    assert [text for text in run.said if text.startswith("DAMAGE: ") and manifest.name in text]


def test_with_another_session_a_run_goes_on_though_a_sink_refuses_its_columns_by_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compiled(graph: Any, spark: Any, columns: Any, have_been_shown: Callable[[], bool]) -> Any:
        asked.append(have_been_shown())
        return Compiled

    def ended_with_spark(led: Played) -> Ending:
        raise EpochInterrupted("epoch 1 of job: totals failed in Spark: the Spark session ended")

    asked: list[bool] = []
    run = Run(tmp_path, monkeypatch, [ended_with_spark, stop])
    monkeypatch.setattr(module, "compile_graph", compiled)
    monkeypatch.setattr(module, "revived", lambda *given: object())
    run.run()
    assert asked == [False, True]


@pytest.mark.parametrize("gone", [False, True])
def test_a_stop_that_was_asked_for_is_not_followed_by_another_try(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gone: bool
) -> None:
    def ended_with_spark(led: Played) -> Ending:
        run.wishes.stopping.set()
        raise EpochInterrupted("epoch 1 of job: totals failed in Spark: the Spark session ended")

    def look(spark: Any) -> None:
        if gone:
            raise SessionLost("the Spark session ended; start the job again")

    run = Run(tmp_path, monkeypatch, [ended_with_spark])
    monkeypatch.setattr(module, "revived", lambda *given: pytest.fail("no new session is needed to stop"))
    monkeypatch.setattr(module, "refuse_if_lost", look)
    with pytest.raises(SessionLost if gone else StopUnfinished):
        run.run()
    assert not any("trying again" in text for text in run.said)
    ending = newest_ending(run.storage)
    assert ending is not None
    assert ending.ending == "failed"
