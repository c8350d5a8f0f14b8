"""Which rows a sink is given after the job has changed, and what is refused instead of dropped or doubled."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any, cast

import pytest

from holdfast.checkpoint.chain.live_files import SharedList
from holdfast.checkpoint.chain.view import CheckpointView
from holdfast.checkpoint.store.records import Extent, StagedFile
from holdfast.connectors.contract import Mark, StagedPart
from holdfast.errors import RestoreError, RetryableError, SinkFailed, SinkWentBack
from holdfast.runtime.epoch.publisher import Publishing
from tests.unit.runtime.leader_kit import leader_of, show_in_all


class Plain:
    """A sink that cannot say what it shows."""

    exactly_once = True

    def __init__(self) -> None:
        self.given: dict[int, list[str]] = {}
        self.begun: int | None = None
        self.closed = False

    def publisher(self, job: str, uid: str) -> Plain:
        return self

    def published_through(self) -> int:
        return 0

    def publish(self, epoch: int, parts: list[StagedPart]) -> None:
        self.given[epoch] = [part.load.args[1].object for part in parts]  # type: ignore[attr-defined]

    def close(self) -> None:
        self.closed = True


class Remembering(Plain):
    """A sink with a mark of its own."""

    def __init__(self, mark: Mark | None) -> None:
        super().__init__()
        self._mark = mark

    def mark(self) -> Mark | None:
        return self._mark

    def begin(self, through: int) -> None:
        self.begun = through


class Keeping(Remembering):
    """A sink that keeps its rows beside its mark."""

    keeps_rows = True

    def published_through(self) -> int:
        return self._mark.epoch if self._mark else 0


def staged(epoch: int, stream: str, *sinks: str, rows: int = 10) -> StagedFile:
    extent = Extent(object=f"{stream}-{epoch}", offset=0, length=0, checksum="")
    return StagedFile(stream=stream, epoch=epoch, part=0, extent=extent, rows=rows, sinks=sinks, input="i")


def view(*files: StagedFile, last: int = 2, rows: int = 0, **published: int) -> CheckpointView:
    """`rows`: the newest epoch of which each sink has shown rows."""
    return CheckpointView(
        number=9,
        last_epoch=last,
        staged=SharedList(files),
        published_through=published,
        rows_through=dict.fromkeys(published, rows),
    )


def opened(view: CheckpointView, said: list[str] | None = None, **sinks: tuple[Plain, str]) -> Publishing:
    """The sinks of a job: uid=(sink, the stream that it shows now)."""
    say = (said if said is not None else []).append
    return Publishing(leader_of(None, sinks=sinks, say=say), view)


def recovered(publishing: Publishing, view: CheckpointView) -> None:
    first = min(publishing.through.values()) + 1
    show_in_all(publishing, first, view.last_epoch, view.staged)


def test_rows_go_to_the_sink_they_were_staged_for_though_it_shows_another_stream_now() -> None:
    before = view(staged(2, "totals", "out"), out=1)
    out = Plain()
    recovered(opened(before, out=(out, "@out")), before)
    assert out.given == {2: ["totals-2"]}


def test_rows_of_two_sinks_that_changed_places_are_not_mixed_up() -> None:
    before = view(staged(2, "totals", "a"), staged(2, "counts", "b"), a=1, b=1)
    a, b = Plain(), Plain()
    recovered(opened(before, a=(a, "counts"), b=(b, "totals")), before)
    assert (a.given, b.given) == ({2: ["totals-2"]}, {2: ["counts-2"]})


def test_a_new_sink_is_not_given_rows_that_were_staged_for_another() -> None:
    before = view(staged(2, "totals", "old"), old=1)
    old, new = Plain(), Plain()
    recovered(opened(before, new=(new, "totals"), old=(old, "totals")), before)
    assert (old.given, new.given) == ({2: ["totals-2"]}, {})


def test_rows_of_a_sink_that_the_job_no_longer_has_are_not_dropped() -> None:
    before = view(staged(2, "totals", "gone"), gone=1, kept=1)
    kept = Plain()
    with pytest.raises(
        RestoreError, match=r"10 rows of epochs 2 to 2 .* sink 'gone' .* `holdfast sinks set-aside gone --ch"
    ):
        opened(before, kept=(kept, "totals"))


def test_a_sink_may_go_once_it_has_shown_everything_or_there_was_nothing_to_show() -> None:
    shown = view(staged(2, "totals", "gone"), gone=2, kept=1)
    empty = view(staged(2, "totals", "gone", rows=0), gone=1, kept=1)
    for before in (shown, empty):
        assert opened(before, kept=(Plain(), "totals")).through == {"kept": 1}


def test_rows_staged_by_an_earlier_version_are_found_by_the_name_of_their_stream() -> None:
    before = view(staged(2, "totals"), out=1)
    out = Plain()
    recovered(opened(before, out=(out, "totals")), before)
    assert out.given == {2: ["totals-2"]}
    with pytest.raises(RestoreError, match=r"10 rows .* for stream 'totals'"):
        opened(before, out=(Plain(), "@out"))


def test_a_sink_without_a_trace_of_what_it_showed_is_told_and_goes_on_when_nothing_waits_for_it() -> None:
    sink, said = Remembering(None), list[str]()
    publishing = opened(view(out=2), said, out=(sink, "totals"))
    assert publishing.through == {"out": 2}
    assert sink.begun is None, "the run may still be refused"
    publishing.begin()
    assert sink.begun == 2
    assert len(said) == 1
    assert "has shown epochs up to 2 and has no trace of it" in said[0]


def test_a_sink_without_a_trace_is_refused_when_it_may_have_shown_what_waits_for_it() -> None:
    sink = Remembering(None)
    with pytest.raises(RestoreError, match=r"whether epochs 2 to 2 \(10 rows, committed\) were shown"):
        opened(view(staged(2, "totals", "out"), out=1), out=(sink, "totals"))
    assert sink.closed
    assert sink.begun is None, "the next start must find no trace either"


def test_a_mark_that_lacks_rows_which_were_shown_is_no_trace() -> None:
    """The sink wrote here, then elsewhere, was killed there, and is let write here again."""
    waiting = staged(4, "totals", "out")
    with pytest.raises(RestoreError, match=r"whether epochs 4 to 4 \(10 rows, committed\) were shown"):
        opened(view(waiting, last=4, rows=3, out=3), out=(Remembering(Mark(2, "i")), "totals"))
    empty_since = view(waiting, last=4, rows=2, out=3)
    assert opened(empty_since, out=(Remembering(Mark(2, "i")), "totals")).through == {"out": 3}


@pytest.mark.parametrize(
    ("mark", "told"),
    [
        (Mark(1, "i"), r"it shows them up to epoch 1 .* rows of epochs 2 to 3 are not there"),
        (None, r"there is no trace of them .* rows of epochs 1 to 3 are not there"),
    ],
)
def test_rows_that_are_gone_from_a_sink_which_keeps_them_are_not_passed_over(
    mark: Mark | None, told: str
) -> None:
    sink = Keeping(mark)
    for files in ([], [staged(4, "totals", "out")]):
        with pytest.raises(SinkWentBack, match=told):
            opened(view(*files, last=4, rows=3, out=3), out=(sink, "totals"))
    assert sink.begun is None, "the next start must find the same"
    assert opened(view(last=4, rows=3, out=4), out=(Keeping(Mark(3, "i")), "totals")).through == {"out": 4}
    nothing_shown = view(last=4, out=4)
    assert opened(nothing_shown, out=(Keeping(None), "totals")).through == {"out": 4}


def test_rows_that_a_sink_had_shown_before_a_commit_could_say_so_count_as_shown() -> None:
    """Or it could lose them after the next commit, and nobody would know."""
    before = view(staged(3, "s", "out"), last=3, rows=2, out=2)
    publishing = opened(before, out=(Keeping(Mark(3, "i")), "s"))
    assert (publishing.through, publishing.rows_through) == ({"out": 3}, {"out": 3})


def test_the_newest_epoch_with_rows_is_kept_for_each_sink() -> None:
    before = view(staged(1, "s", "out"), staged(2, "s", "out", rows=0), out=0)
    publishing = opened(before, out=(Remembering(Mark(0)), "s"))
    recovered(publishing, before)
    assert (publishing.through, publishing.rows_through) == ({"out": 2}, {"out": 1})


def test_sinks_that_are_written_before_the_commit_decide_nothing_about_plans() -> None:
    repeating = Remembering(Mark(5, "x"))
    repeating.exactly_once = False
    assert opened(view(out=1), out=(repeating, "totals")).shown == {}


def test_a_sink_that_is_not_known_to_have_shown_anything_needs_a_trace_as_well() -> None:
    """Its first epoch may have been shown when the process died, before any commit could say so."""
    with pytest.raises(RestoreError, match=r"whether epochs 1 to 1 \(10 rows, committed\) were shown"):
        opened(view(staged(1, "totals", "out"), last=1, out=0), out=(Remembering(None), "totals"))


def test_a_sink_that_the_job_did_not_have_needs_no_trace() -> None:
    said: list[str] = []
    assert opened(view(first=2), said, out=(Remembering(None), "totals")).through == {"out": 2}
    assert said == []


def test_a_copy_of_the_checkpoint_that_the_job_has_left_is_refused() -> None:
    """It was killed with epoch 2 committed and not shown, and went on from an older copy in other steps."""
    before = view(staged(2, "totals", "out"), staged(3, "totals", "out"), last=3, out=1)
    assert opened(before, out=(Remembering(Mark(2, "i")), "totals")).through == {"out": 2}
    with pytest.raises(RestoreError, match="shows epoch 2 made of other rows than this checkpoint has"):
        opened(before, out=(Remembering(Mark(2, "other")), "totals"))


def test_what_a_sink_shows_is_believed_and_told_to_the_planner() -> None:
    publishing = opened(view(out=1), out=(Remembering(Mark(5, "x")), "totals"))
    assert publishing.through == {"out": 5}
    assert publishing.shown == {"out": Mark(5, "x")}


class Broken(Plain):
    def publish(self, epoch: int, parts: list[StagedPart]) -> None:
        raise ValueError(f"no column for {epoch}\nand more")


def test_an_error_of_a_sink_names_the_sink_the_epoch_and_the_way_out() -> None:
    before = view(staged(2, "totals", "out"), out=1)
    publishing = opened(before, out=(Broken(), "totals"))
    with pytest.raises(
        SinkFailed, match=r"'out' did not show epoch 2 \(ValueError: no column for 2\)"
    ) as told:
        recovered(publishing, before)
    assert "`holdfast sinks set-aside out --checkpoint url --to DIRECTORY`" in str(told.value)
    assert publishing.through == {"out": 1}


def test_no_sink_is_begun_before_all_were_accepted() -> None:
    first, second = Remembering(Mark(0)), Remembering(None)
    with pytest.raises(RestoreError, match="second"):
        opened(view(staged(2, "s", "second"), first=1, second=1), first=(first, "s"), second=(second, "s"))
    assert first.begun is None
    assert first.closed


class Overtaken(Plain):
    """A sink that another process writes to: it has shown epochs up to `through`, and refuses older ones."""

    def __init__(self, through: int) -> None:
        super().__init__()
        self.through = 0
        self._others = through

    def published_through(self) -> int:
        return self.through

    def publish(self, epoch: int, parts: list[StagedPart]) -> None:
        self.through = self._others
        raise RetryableError("another has shown more meanwhile; try again")


def shown_beside_others(sink: Overtaken, *, replica: bool) -> dict[str, int]:
    leader = leader_of(None, sinks={"out": (sink, "s")})
    fellow: Any = SimpleNamespace() if replica else None
    publishing = Publishing(dataclasses.replace(leader, replica=fellow), view(last=0, out=0))
    show_in_all(publishing, 1, 1, [staged(1, "s", "out")])
    return publishing.through


def test_an_epoch_that_another_member_has_shown_meanwhile_is_shown() -> None:
    assert shown_beside_others(Overtaken(3), replica=True) == {"out": 1}


def test_rows_that_another_member_has_shown_and_the_sink_has_lost_are_not_passed_over() -> None:
    """This member has shown none of them itself, so its publisher does not know of them."""
    sink, fellow = Keeping(Mark(1, "i")), cast(Any, SimpleNamespace())
    leader = dataclasses.replace(leader_of(None, sinks={"out": (sink, "s")}), replica=fellow)
    publishing = Publishing(leader, view(last=1, rows=1, out=1))
    publishing.learn({"out": 2}, {"out": 2})
    with pytest.raises(SinkWentBack, match="rows of epochs 2 to 2 are not there"):
        show_in_all(publishing, 3, 3, [staged(3, "s", "out")])
    assert sink.given == {}


def test_what_failed_and_is_not_shown_has_failed() -> None:
    with pytest.raises(RetryableError):
        shown_beside_others(Overtaken(0), replica=True)
    with pytest.raises(RetryableError):
        shown_beside_others(Overtaken(3), replica=False)
