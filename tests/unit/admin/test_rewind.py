"""Going back to a retained commit on request."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from holdfast.admin import brief_term
from holdfast.admin import rewind as module
from holdfast.admin.prune import prune
from holdfast.admin.rewind import outlook, rewind
from holdfast.checkpoint.chain.checkpoint import open_checkpoint
from holdfast.checkpoint.chain.commits import Chain, Committed
from holdfast.checkpoint.chain.plans import Plans
from holdfast.checkpoint.chain.terms import newest_ending
from holdfast.checkpoint.chain.view import news
from holdfast.checkpoint.store import names
from holdfast.checkpoint.store.records import ChannelState, Extent, TableCopy
from holdfast.clock import SystemClock
from holdfast.connectors.contract import Mark
from holdfast.errors import RestoreError, RetryableError
from holdfast.runtime.epoch.recorded_plans import PlanShape, recorded_plans
from holdfast.storage.local_directory import LocalStorage
from tests.unit.admin.rewind_kit import COMMITS, end, grown, plan, say_shown, spoil, state
from tests.unit.checkpoint.chain.test_view_uncoordinated import mark
from tests.unit.inspect.stored import MadeCheckpoint
from tests.unit.inspect.test_stored_state import evolved, read

CLOCK = SystemClock()


@pytest.fixture(autouse=True)
def no_leader_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(brief_term, "ANSWER_SECONDS", 0.0)


def replayed(made: MadeCheckpoint) -> list[int]:
    """The epochs that a job which starts now reads again as they were."""
    chain = Chain(made.storage)
    shown = {"out": Mark(COMMITS)}
    found = recorded_plans(chain, chain.load(), PlanShape(("in",), "other code", 2), shown)
    return [recorded.plan.epoch for recorded in found]


def refused(made: MadeCheckpoint, to: int, **more: Any) -> str:
    """Asks to go back, which is refused without a trace; gives what is said."""
    before = made.storage.list("")
    with pytest.raises(RestoreError) as told:
        rewind(made.storage, to, CLOCK, **more)
    assert made.storage.list("") == before
    return str(told.value)


def test_state_and_positions_of_the_commit_hold_again(tmp_path: Path) -> None:
    made = grown(tmp_path)
    done = rewind(made.storage, 4, CLOCK)
    assert done.commit == 8
    view = Chain(made.storage).load()
    assert (view.number, view.last_epoch, view.positions) == (8, 4, {"in": 4})
    assert read(made) == state(4)
    assert replayed(made) == [5, 6]
    assert view.published_through == {"out": 6}, "what was shown stays shown"


def test_what_it_means_is_told_before_and_nothing_is_written(tmp_path: Path) -> None:
    made = grown(tmp_path)
    before = made.storage.list("")
    found = outlook(made.storage, 4)
    assert (found.from_commit, found.from_epoch, found.to_commit, found.to_epoch) == (7, 6, 4, 4)
    assert (found.replayed, found.replayed_through, found.sinks) == (2, 6, {"out": 6})
    assert (found.uncoordinated, found.other_schemas, found.holds) == ((), (), False)
    assert made.storage.list("") == before


def test_how_the_run_before_has_ended_stays_known(tmp_path: Path) -> None:
    made = grown(tmp_path)
    rewind(made.storage, 4, CLOCK)
    ended = newest_ending(made.storage)
    assert ended is not None
    assert (ended.term, ended.ending) == (2, "stopped")


def test_one_can_go_back_again_and_forward_again(tmp_path: Path) -> None:
    made = grown(tmp_path)
    for number, to in enumerate((4, 2, 5, 1, 6), 8):
        assert rewind(made.storage, to, CLOCK).commit == number
        assert read(made) == state(to)
        assert replayed(made) == list(range(to + 1, COMMITS + 1))
    # A commit that itself goes back is a commit like others: 8 is 4 again.
    assert rewind(made.storage, 8, CLOCK).commit == 13
    assert read(made) == state(4)


def test_a_commit_that_holds_already_is_left_at_that(tmp_path: Path) -> None:
    made = grown(tmp_path)
    before = made.storage.list("")
    # 7 is the newest, 6 has the same state and positions.
    assert [rewind(made.storage, to, CLOCK).commit for to in (7, 6)] == [None, None]
    assert made.storage.list("") == before
    assert rewind(made.storage, 4, CLOCK).commit == 8
    before = made.storage.list("")
    assert [rewind(made.storage, to, CLOCK).commit for to in (8, 4)] == [None, None]
    assert made.storage.list("") == before
    assert not outlook(made.storage, 7).holds


def test_the_same_epoch_with_other_state_does_not_hold_already(tmp_path: Path) -> None:
    """After a rewind other code may have made something else of an epoch."""
    made = grown(tmp_path)
    rewind(made.storage, 5, CLOCK)
    chain = Chain(made.storage)
    view = chain.load()
    record = made.chain.record(6)
    deltas = record.deltas[:1]
    again = news(view, term=2, run=view.run, published_through=view.published_through)
    done = chain.commit(
        view, module.replace(again, last_epoch=6, attempts={"6": 1}, positions={"in": 6}, deltas=deltas)
    )
    assert isinstance(done, Committed)
    assert not outlook(made.storage, 6).holds
    assert rewind(made.storage, 6, CLOCK).commit == 10
    assert read(made) == state(6)


def test_no_commit_is_given_up_by_it(tmp_path: Path) -> None:
    made = grown(tmp_path, commits=14)
    rewind(made.storage, 3, CLOCK)
    assert Chain(made.storage).load().retained_from == 1
    assert rewind(made.storage, 1, CLOCK).commit == 17


@pytest.mark.parametrize(
    ("to", "told"),
    [
        (99, "there is no commit 99 in"),
        (10, "there is no commit 10 in"),
        (0, "there is no commit 0 in"),
        (-1, "there is no commit -1 in"),
        (3, "commit 3 of"),
    ],
)
def test_a_commit_that_is_not_retained_is_refused(tmp_path: Path, to: int, told: str) -> None:
    made = grown(tmp_path)
    prune(made.storage, 4, CLOCK)
    said = refused(made, to)
    assert told in said
    assert "choose one from 4 to 9, the newest are 9 (epoch " in said
    assert f"`holdfast rewind --list --checkpoint {made.url}`" in said
    assert ("is given up" in said) == (to == 3)


def test_a_checkpoint_without_commits_has_nothing_to_go_back_to(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    open_checkpoint(storage, "job", 4, CLOCK, identity="i")
    with pytest.raises(RestoreError, match=r"there are no commits in .* yet"):
        rewind(storage, 1, CLOCK)


def test_a_commit_whose_files_do_not_verify_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    made = grown(tmp_path)
    name = made.chain.record(3).deltas[0].extent.object
    spoil(made, name)
    said = refused(made, 4)
    assert "commit 4 cannot be gone back to, and nothing was written" in said
    assert name in said
    assert "choose another commit" in said
    # What comes before the damage is whole.
    assert rewind(made.storage, 2, CLOCK).commit == 8
    assert read(made) == state(2)


def test_a_commit_whose_record_is_damaged_is_refused(tmp_path: Path) -> None:
    made = grown(tmp_path)
    spoil(made, names.commit(4))
    assert "commits/000000000004" in refused(made, 4)
    assert "commits/000000000004" in refused(made, 5)


def test_one_can_go_back_from_a_damaged_newest_commit(tmp_path: Path) -> None:
    made = grown(tmp_path)
    spoil(made, names.commit(7))
    found = outlook(made.storage, 4)
    assert (found.from_commit, found.from_epoch, found.replayed) == (7, None, 2)
    assert rewind(made.storage, 4, CLOCK).commit == 8
    assert read(made) == state(4)
    assert replayed(made) == [5, 6]


@pytest.mark.parametrize("lost", ["gone", "damaged"])
def test_epochs_that_cannot_be_read_again_as_they_were_forbid_it(tmp_path: Path, lost: str) -> None:
    made = grown(tmp_path)
    name = names.plan(5, 1)
    made.storage.delete([name]) if lost == "gone" else spoil(made, name)
    said = refused(made, 4)
    assert "epoch 5 would have to be read again as it was" in said
    assert name in said
    # After it, that epoch is not needed.
    assert rewind(made.storage, 5, CLOCK).commit == 8


def test_a_copy_of_a_table_that_is_gone_forbids_it(tmp_path: Path) -> None:
    made = grown(tmp_path, commits=2, ended=False)
    extent = Extent(object="data/000000000003/table", offset=0, length=3, checksum="c")
    copy = TableCopy(epoch=3, read_ms=0, columns="n long", rows=1, extents=(extent,))
    Plans(made.storage).write(plan(3, {"names": copy}))
    made.commit(state(3))
    say_shown(made, 3)
    end(made)
    assert "data/000000000003/table" in refused(made, 2)


def test_a_running_job_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = grown(tmp_path, ended=False)
    monkeypatch.setattr(brief_term, "status_of_leader", lambda *given, **more: {"phase": "running"})
    said = refused(made, 4)
    assert f"the job is running; stop it (`holdfast stop --checkpoint {made.url}`)" in said


def test_a_silent_leader_is_left_alone_unless_it_is_known_to_be_gone(tmp_path: Path) -> None:
    made = grown(tmp_path, ended=False)
    before = made.storage.list("")
    with pytest.raises(RetryableError, match=r"nothing was touched; .* --not-running"):
        rewind(made.storage, 4, CLOCK)
    assert made.storage.list("") == before
    assert rewind(made.storage, 4, CLOCK, not_running=True).commit == 8


def test_a_leader_that_commits_before_the_term_is_claimed_keeps_what_it_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = grown(tmp_path)
    monkeypatch.setattr(module, "refuse_unless_whole", lambda *given: made.commit(state(7)))
    with pytest.raises(RetryableError, match="a leader has committed 8 meanwhile: nothing was written"):
        rewind(made.storage, 4, CLOCK)
    assert read(made) == state(7)
    assert made.chain.numbers()[-1] == 8


def test_a_leader_that_commits_after_the_term_is_claimed_keeps_what_it_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = grown(tmp_path)
    going_back = Chain.rewind

    def overtaken(chain: Chain, *given: Any, **more: Any) -> Any:
        made.commit(state(7))
        return going_back(chain, *given, **more)

    monkeypatch.setattr(Chain, "rewind", overtaken)
    with pytest.raises(RetryableError, match="another leader has committed 8 meanwhile, and that counts"):
        rewind(made.storage, 4, CLOCK)
    assert read(made) == state(7)
    assert made.chain.numbers()[-1] == 8


def test_a_command_that_was_killed_is_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = grown(tmp_path)

    def killed(*given: Any, **more: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Chain, "rewind", killed)
        patch.setattr(brief_term, "record_ending", lambda *given: None)
        with pytest.raises(KeyboardInterrupt):
            rewind(made.storage, 4, CLOCK)
    assert read(made) == state(6)
    assert rewind(made.storage, 4, CLOCK).commit == 8
    assert read(made) == state(4)


def test_what_is_in_a_channel_stays_and_is_named(tmp_path: Path) -> None:
    made = grown(tmp_path, ended=False)
    for through in (5, 6):
        record = news(
            made.view,
            term=1,
            run="r",
            published_through={"out": 6},
            channels={"to-b": ChannelState(through=through)},
        )
        done = made.chain.commit(made.view, record)
        assert isinstance(done, Committed)
        made.view = done.view
    end(made)
    assert outlook(made.storage, 4).channels == {"to-b": 6}
    # Only the channel has come further since then, and that it keeps.
    assert outlook(made.storage, 7).holds
    rewind(made.storage, 4, CLOCK)
    assert Chain(made.storage).load().channels["to-b"].through == 6
    assert outlook(made.storage, 4).holds


def test_keys_that_are_saved_on_their_own_are_named(tmp_path: Path) -> None:
    made = grown(tmp_path, ended=False)
    record = news(
        made.view, term=1, run="r", published_through={"out": 6}, uncoordinated=(mark(0, 1, operator="own"),)
    )
    assert isinstance(made.chain.commit(made.view, record), Committed)
    assert outlook(made.storage, 4).uncoordinated == ("own",)
    assert outlook(made.storage, 8).uncoordinated == ("own",)
    # How many of their events are in no save is all that has changed since then.
    assert outlook(made.storage, 7).holds


def test_operators_whose_state_had_another_schema_are_named_and_that_schema_holds_again(
    tmp_path: Path,
) -> None:
    made = grown(tmp_path, ended=False)
    evolved(made)
    Plans(made.storage).write(plan(7))
    made.commit({("u1", 1): {"total": Decimal("1.50"), "late": True}})
    end(made)
    assert outlook(made.storage, 7).other_schemas == ("totals",)
    rewind(made.storage, 4, CLOCK)
    assert read(made) == state(4)
    (schema,) = Chain(made.storage).load().operators
    assert schema.generation == 0
    assert outlook(made.storage, 5).other_schemas == ()
    # And forward again, to the newer one.
    rewind(made.storage, 8, CLOCK)
    assert Chain(made.storage).load().operators[0].generation == 1
