"""What the marks of a lane sink mean when a run begins: what is shown, what is shown by half, what was lost.

Always true: nothing is decided by what a sink shows less than the commits say, other than to show it again;
an epoch counts as shown when all of its lanes are. Rows that are shown by half are never computed again: the
staged rows that the first half came from are the only ones that fit.
Never here: writing, or asking the sink (see publisher).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from holdfast.checkpoint.chain.history import History
from holdfast.checkpoint.chain.view import CheckpointView
from holdfast.checkpoint.store.records import StagedFile
from holdfast.connectors.contract import Mark
from holdfast.connectors.lanes import LaneMark, lane_of
from holdfast.errors import CorruptionError, HoldfastError, RestoreError, SinkWentBack

Marks = Mapping[int, LaneMark]
NOTHING = LaneMark(0)


@dataclass(frozen=True)
class LaneStanding:
    """How the lanes of a sink stand.

    `through`: the newest epoch of which all is shown, once `again` is. `newest`: the newest epoch of which
    anything is shown. `shown`: lane -> the mark that the newest rows up to `through` left; what is written
    next follows it. `again`: rows that the sink had shown and has lost. `begins`: the epoch that marks which
    are not there are made with.
    """

    through: int
    newest: Mark
    shown: dict[int, LaneMark]
    begins: int
    again: tuple[StagedFile, ...] = ()
    news: str = ""


@dataclass(frozen=True)
class LaneQuestion:
    """A sink whose lanes were asked: what its marks are, beside what the checkpoint knows."""

    uid: str
    marks: Marks
    view: CheckpointView
    history: History
    replaces: bool = field(default=True)
    """Whether rows that were lost are shown again: not at most once."""

    @property
    def known(self) -> dict[int, LaneMark]:
        """Lane -> the mark that the newest rows left which a commit knows to be shown."""
        return marks_in(self.view, self.uid)

    @property
    def recorded(self) -> int:
        """The epoch up to which commits say that the sink is published. A new sink begins with the next."""
        begins = max(self.view.last_epoch, self.view.whole_after)
        return self.view.published_through.get(self.uid, begins)

    def mark(self, lane: int) -> LaneMark:
        return self.marks.get(lane, NOTHING)

    def files(self, staged: Iterable[StagedFile]) -> list[StagedFile]:
        return [file for file in staged if file.rows and self.uid in file.sinks]


def marks_in(view: CheckpointView, uid: str) -> dict[int, LaneMark]:
    """Lane -> the mark that its newest rows left, as a commit has it."""
    return {int(lane): LaneMark(*mark) for lane, mark in view.lanes_through.get(uid, {}).items()}


def ends_of(files: Iterable[StagedFile]) -> dict[int, LaneMark]:
    """Lane -> the mark that showing these rows of one epoch leaves."""
    ends: dict[int, LaneMark] = {}
    for file in files:
        lane = lane_of(file.part)
        before = ends.get(lane, LaneMark(file.epoch))
        ends[lane] = LaneMark(file.epoch, before.rows + file.rows, file.input)
    return ends


def standing(asked: LaneQuestion, superseded: Callable[[], HoldfastError | None]) -> LaneStanding:
    """How the sink stands. RestoreError: it shows what this checkpoint does not have, or by half what is
    damaged. SinkWentBack: it has lost rows that are no longer staged.

    `superseded`: what to raise instead where the chain has gone on since the view was read.
    """
    newest = max(asked.marks.values(), default=NOTHING)
    shown, recorded = Mark(newest.epoch, newest.input), asked.recorded
    if not asked.replaces:
        # Commits come before the rows here: what is lost or shown by half stays so.
        through = max(recorded, newest.epoch)
        return LaneStanding(through, shown, dict(asked.marks), begins=through)
    _refuse_without_trace(asked)
    _refuse_left(asked)
    _refuse_unknown(asked, superseded)
    through, ends = _whole(asked)
    behind = {lane: mark for lane, mark in asked.known.items() if asked.mark(lane) < mark}
    again = tuple(_staged_since(asked, behind)) if behind else ()
    first = min((file.epoch for file in again), default=through + 1)
    begins = min(through, first - 1)
    left = {lane: asked.marks.get(lane, LaneMark(begins)) for lane in behind}
    return LaneStanding(through, shown, asked.known | ends | left, begins, again, _said(asked, behind, again))


def _whole(asked: LaneQuestion) -> tuple[int, dict[int, LaneMark]]:
    """The newest epoch up to which all lanes are shown, though no commit says so yet, and what the newest
    rows of the lanes left."""
    by_epoch: dict[int, list[StagedFile]] = {}
    for file in asked.files(asked.view.staged):
        by_epoch.setdefault(file.epoch, []).append(file)
    lost = asked.view.settled.lost.get(asked.uid, ())
    through, ends = asked.recorded, dict[int, LaneMark]()
    for epoch in sorted({*by_epoch, *lost}):
        if epoch <= asked.recorded:
            continue
        files = _damaged(asked, epoch) if epoch in lost else by_epoch[epoch]
        left = ends_of(files)
        if not files or any(asked.mark(lane) < end for lane, end in left.items()):
            break
        through, ends = epoch, ends | left
    return through, ends


def _damaged(asked: LaneQuestion, epoch: int) -> list[StagedFile]:
    """The rows of an epoch that are lost by damage and all shown; empty: none of them is. RestoreError:
    some are, and what is computed again might be dealt otherwise."""
    lanes = sorted(lane for lane, mark in asked.marks.items() if mark.epoch >= epoch and mark.rows)
    if not lanes:
        return []
    named = [file for file in _named_by_commits(asked) if file.epoch == epoch]
    if named and all(asked.mark(lane) >= end for lane, end in ends_of(named).items()):
        return named
    raise RestoreError(
        f"rows of epoch {epoch} for sink {asked.uid!r} are damaged, and it shows others of the same epoch "
        f"(in {listed(lanes)}): what would be computed again might be dealt to other lanes, and some rows "
        "come twice or never; restore the files from a copy, or give the sink another uid"
    )


def _refuse_without_trace(asked: LaneQuestion) -> None:
    """Refuse to show what waits where the sink has shown rows by no lanes, elsewhere: it was another kind of
    sink, and how far that one came is not known here."""
    shown_elsewhere = asked.view.rows_through.get(asked.uid, 0) and not asked.known and not asked.marks
    waiting = [file for file in asked.files(asked.view.staged) if file.epoch > asked.recorded]
    if shown_elsewhere and waiting:
        rows, last = sum(file.rows for file in waiting), waiting[-1].epoch
        raise RestoreError(
            f"sink {asked.uid!r} has shown epochs up to {asked.recorded} and has no trace of it where it "
            f"writes now: whether epochs {asked.recorded + 1} to {last} ({rows} rows, committed) were shown "
            "where it wrote before cannot be told; start once with the former sink, or put these rows aside "
            f"with `holdfast sinks set-aside {asked.uid}`"
        )


def _refuse_left(asked: LaneQuestion) -> None:
    """Refuse a copy of the checkpoint that the job has left since."""
    for file in asked.files(asked.view.staged):
        mark = asked.mark(lane_of(file.part))
        if mark.epoch == file.epoch and "" not in (mark.input, file.input) and mark.input != file.input:
            raise RestoreError(
                f"sink {asked.uid!r} shows epoch {mark.epoch} made of other rows than this checkpoint has: "
                "the job went on from another copy since; restore a newer copy of the checkpoint, or give "
                "the sink another uid"
            )


def _refuse_unknown(asked: LaneQuestion, superseded: Callable[[], HoldfastError | None]) -> None:
    """Refuse to go on where the sink shows epochs whose commits are lost: of which lanes they consist, and
    which rows are in them, is lost with the commits."""
    view = asked.view
    last = max(view.last_epoch, view.whole_after, view.settled.through.get(asked.uid, 0), asked.recorded)
    ahead = {lane: mark for lane, mark in asked.marks.items() if mark.epoch > last}
    if not ahead:
        return
    newest = max(mark.epoch for mark in ahead.values())
    raise superseded() or RestoreError(
        f"sink {asked.uid!r} shows rows of epochs up to {newest} in {listed(ahead)}, and this checkpoint "
        f"ends with epoch {last}: the commits that say which rows these are, and which are still to be "
        "shown, are lost; restore a newer copy of the checkpoint, or give the sink another uid and take back "
        f"what it shows after epoch {last}"
    )


def _staged_since(asked: LaneQuestion, behind: Marks) -> list[StagedFile]:
    """The rows that the sink has lost, from the files that retained commits name. SinkWentBack: some of them
    are in no retained commit any more."""
    files = [
        file
        for file in _named_by_commits(asked)
        if file.epoch <= asked.recorded and asked.mark(lane_of(file.part)) < LaneMark(file.epoch + 1)
    ]
    lost = [file for file in files if _is_lost(asked, file, files) and not _was_set_aside(asked, file)]
    if not _complete(asked):
        low = min(asked.mark(lane).epoch for lane in behind)
        high = max(mark.epoch for mark in behind.values())
        raise SinkWentBack(
            f"sink {asked.uid!r} went back: it had shown rows up to epoch {high}, and in {listed(behind)} "
            f"it shows them up to epoch {low} or later (an older copy, or a server that lags behind took its "
            f"place); rows of epochs {low + 1} to {high} are no longer staged; bring back a newer copy of "
            "the sink, or give it another uid: then it begins with the next epoch, without these"
        )
    return lost


def _is_lost(asked: LaneQuestion, file: StagedFile, files: list[StagedFile]) -> bool:
    lane = lane_of(file.part)
    same = [each for each in files if each.epoch == file.epoch and lane_of(each.part) == lane]
    return asked.mark(lane) < ends_of(same)[lane]


def _was_set_aside(asked: LaneQuestion, file: StagedFile) -> bool:
    """Whether a person has put these rows aside: then the first commit that is past their epoch does not know
    their lane to be shown. What the sink refused then it would refuse now, and those rows are elsewhere."""
    lane, oldest = lane_of(file.part), _oldest(asked)
    if oldest.published_through.get(asked.uid, 0) >= file.epoch:
        return marks_in(oldest, asked.uid).get(lane, NOTHING) < LaneMark(file.epoch, 1)
    for number in range(oldest.number + 1, asked.view.number + 1):
        record = asked.history.record(number)
        if record.published_through.get(asked.uid, 0) >= file.epoch:
            shown = record.lanes_through.get(asked.uid, {}).get(str(lane), (0, 0))
            return LaneMark(*shown) < LaneMark(file.epoch, 1)
    return False


def _complete(asked: LaneQuestion) -> bool:
    """Whether everything after the marks is in a retained commit: one of them was written before the sink
    had shown more than it shows now."""
    since = _oldest(asked)
    before = marks_in(since, asked.uid)
    replaced = any(
        asked.uid in record.lost_output
        for record in map(asked.history.record, range(since.number + 1, asked.view.number + 1))
    )
    return not replaced and all(asked.mark(lane) >= mark for lane, mark in before.items())


def _oldest(asked: LaneQuestion) -> CheckpointView:
    """The oldest commit whose files are all kept."""
    number = asked.view.number
    for number in range(max(asked.view.retained_from, 1), asked.view.number + 1):
        try:
            return asked.history.view_at(number)
        except CorruptionError:
            continue
    return asked.view


def _named_by_commits(asked: LaneQuestion) -> list[StagedFile]:
    """Every file for the sink that a retained commit names, each once, in the order of epochs and parts."""
    oldest = _oldest(asked)
    files = list(oldest.staged)
    for number in range(oldest.number + 1, asked.view.number + 1):
        files += asked.history.record(number).staged
    found = {(file.epoch, file.part): file for file in reversed(asked.files(files))}
    return [found[key] for key in sorted(found)]


def _said(asked: LaneQuestion, behind: Marks, again: tuple[StagedFile, ...]) -> str:
    if not behind:
        return ""
    rows, epochs = sum(file.rows for file in again), {file.epoch for file in again}
    return (
        f"SINK WENT BACK: {asked.uid!r} shows less than it had shown, in {listed(behind)}; {rows} rows of "
        f"epochs {min(epochs, default=0)} to {max(epochs, default=0)} are still staged, and are shown again"
    )


def listed(lanes: Iterable[int]) -> str:
    numbers = sorted(lanes)
    return f"lane{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"
