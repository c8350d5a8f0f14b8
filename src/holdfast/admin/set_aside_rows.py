"""Putting aside rows that a sink cannot show, so that what comes after them is not held up.

    read what waits for the sink -> write it as Parquet, by epoch -> commit that the sink is past it

For a job that is not running: a sink that refuses a committed epoch for good, or that the job no longer has.
Always true: no row is given up before it is durable where the user wants it; interrupted, it is done again
and writes the same files. A leader that is there, or may be, is left alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.admin.brief_term import brief_term, look_for_leader
from holdfast.admin.rows_aside import write_aside
from holdfast.checkpoint.chain.commits import RETAIN_ALL, Adopted, Chain
from holdfast.checkpoint.chain.view import CheckpointView, news
from holdfast.checkpoint.store.records import StagedFile
from holdfast.clock import Clock
from holdfast.connectors.lanes import LaneMark, lane_of
from holdfast.errors import RestoreError, RetryableError
from holdfast.runtime.epoch.lane_marks import NOTHING, marks_in
from holdfast.storage.contract import Storage


@dataclass(frozen=True)
class Standing:
    """How a sink stands: epochs up to `shown` are recorded as shown, `rows` of later epochs are not. After a
    kill the first of those may be shown all the same: the sink knows, and is asked when the job starts.
    `by_lane`: it may show the beginning of each lane of that epoch."""

    sink: str
    shown: int
    waiting_epochs: tuple[int, ...]
    rows: int
    by_lane: bool = False


@dataclass(frozen=True)
class SetAside:
    """Rows that were put aside, and where."""

    sink: str
    epochs: tuple[int, ...]
    rows: int
    place: str
    files: tuple[str, ...]


def standings(view: CheckpointView) -> list[Standing]:
    """Every sink that the newest commit knows."""
    found = []
    for sink in sorted(view.published_through):
        files = _waiting(view, sink)
        epochs = tuple(sorted({file.epoch for file in files}))
        rows = sum(file.rows for file in files)
        by_lane = sink in view.lanes_through
        found.append(Standing(sink, view.published_through[sink], epochs, rows, by_lane))
    return found


def set_aside(
    storage: Storage,
    sink: str,
    target: Storage,
    clock: Clock,
    *,
    through: int | None = None,
    not_running: bool = False,
) -> SetAside:
    """Write the rows that wait for `sink`, of epochs up to `through` if given, to `target`, and let the job
    go on after them. `not_running`: the caller knows that no leader is left."""
    leader = look_for_leader(storage, clock, "sinks set-aside", not_running=not_running)
    if leader.answers:
        raise RestoreError("the job is running; stop it (holdfast stop), then put the rows aside")
    _chosen(Chain(storage).load(), sink, through)
    with brief_term(storage, leader.newest, clock) as (term, run):
        # Read again under the term: a leader that came before it has committed, one that comes now fences us.
        chain = Chain(storage, retain=RETAIN_ALL)
        view = chain.load()
        files, last = _chosen(view, sink, through)
        epochs = tuple(sorted({file.epoch for file in files}))
        names = write_aside(storage, target, sink, files, by_lane=sink in view.lanes_through)
        _commit(chain, view, sink, last, term, run)
    return SetAside(sink, epochs, sum(file.rows for file in files), target.url, names)


def _chosen(view: CheckpointView, sink: str, through: int | None) -> tuple[list[StagedFile], int]:
    """The files to put aside, and the epoch that the sink is past then. RestoreError: there are none."""
    if sink not in view.published_through:
        known = ", ".join(sorted(view.published_through)) or "none"
        raise RestoreError(f"the checkpoint knows no sink {sink!r}; it has {known}")
    # After a rewind rows may wait of later epochs as well, up to the first that is to be computed again.
    last = max(view.last_epoch, view.settled.ready_through(sink))
    last = last if through is None else min(through, last)
    files = [file for file in _waiting(view, sink) if file.epoch <= last]
    if not files:
        raise RestoreError(f"no rows wait for sink {sink!r}; start the job instead")
    return files, last


def _waiting(view: CheckpointView, sink: str) -> list[StagedFile]:
    """Records of format 2 do not name the sinks of their rows: those count for every sink. Of a lane that
    the commits know to be shown nothing waits, though others of its epoch do."""
    shown, lanes = view.published_through[sink], marks_in(view, sink)
    files = [
        file
        for file in view.staged
        if file.rows and file.epoch > shown and (not file.sinks or sink in file.sinks)
    ]
    return [file for file in files if lanes.get(lane_of(file.part), NOTHING) < LaneMark(file.epoch, 1)]


def _commit(chain: Chain, view: CheckpointView, sink: str, last: int, term: int, run: str) -> None:
    published = {**view.published_through, sink: last}
    record = news(view, term=term, run=run, published_through=published, ended=view.ended)
    if isinstance(chain.commit(view, record), Adopted):
        raise RetryableError(
            "another leader has committed meanwhile, and the rows may have been shown; stop the job and look "
            "again with `holdfast sinks list`; what was written aside is kept"
        )
