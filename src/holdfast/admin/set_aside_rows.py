"""Putting aside rows that a sink cannot show, so that what comes after them is not held up.

    read what waits for the sink -> write it as Parquet, by epoch -> commit that the sink is past it

For a job that is not running: a sink that refuses a committed epoch for good, or that the job no longer has.
Always true: no row is given up before it is durable where the user wants it; interrupted, it is done again
and writes the same files. A leader that is there, or may be, is left alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

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
    """How a sink stands: it shows epochs up to `shown`, `rows` of later epochs are committed and wait.

    `says`: who says so. A run that lives knows what its sinks show now, and why one does not: `full`,
    `unavailable` and `refused` are as in its progress. The newest commit may know less: after a kill the
    first of the epochs that wait may be shown all the same, which the sink knows, and is asked when the job
    starts. `by_lane`: it may show the beginning of each lane of that epoch."""

    sink: str
    shown: int
    waiting_epochs: tuple[int, ...]
    rows: int
    by_lane: bool = False
    says: Literal["run", "commit"] = "commit"
    full: bool = False
    unavailable: dict[str, Any] | None = None
    refused: dict[str, Any] | None = None


@dataclass(frozen=True)
class Choice:
    """What would be put aside: `rows`, of these epochs, that take `bytes` in the checkpoint."""

    sink: str
    epochs: tuple[int, ...]
    rows: int
    bytes: int


@dataclass(frozen=True)
class SetAside:
    """Rows that were put aside, and where."""

    sink: str
    epochs: tuple[int, ...]
    rows: int
    place: str
    files: tuple[str, ...]


def standings(view: CheckpointView, live: Mapping[str, Mapping[str, Any]] | None = None) -> list[Standing]:
    """Every sink of the newest commit and of the run. `live`: how sinks stand by the word of a run that
    lives, as its progress has it; None: none does."""
    live = live or {}
    return [_standing(view, sink, live.get(sink)) for sink in sorted({*view.published_through, *live})]


def _standing(view: CheckpointView, sink: str, told: Mapping[str, Any] | None) -> Standing:
    shown = view.published_through.get(sink, 0)
    if told is not None:
        # Of one that is not asked yet, as at a start, the commit knows more.
        shown = max(shown, told["through"])
    files = _waiting(view, sink, shown)
    standing = Standing(
        sink, shown, _epochs(files), sum(file.rows for file in files), by_lane=sink in view.lanes_through
    )
    if told is None:
        return standing
    # A leader of another version may tell less.
    away, refused = told.get("unavailable"), told.get("refused")
    return replace(standing, says="run", full=bool(told.get("full")), unavailable=away, refused=refused)


def choose(view: CheckpointView, sink: str, through: int | None) -> Choice:
    """What `set_aside` would put aside. RestoreError: there is nothing."""
    files, _ = _chosen(view, sink, through)
    rows, size = sum(file.rows for file in files), sum(file.extent.length for file in files)
    return Choice(sink, _epochs(files), rows, size)


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
        names = write_aside(storage, target, sink, files, by_lane=sink in view.lanes_through)
        _commit(chain, view, sink, last, term, run)
    return SetAside(sink, _epochs(files), sum(file.rows for file in files), target.url, names)


def _chosen(view: CheckpointView, sink: str, through: int | None) -> tuple[list[StagedFile], int]:
    """The files to put aside, and the epoch that the sink is past then. RestoreError: there are none."""
    if sink not in view.published_through:
        known = ", ".join(sorted(view.published_through)) or "none"
        raise RestoreError(f"the checkpoint knows no sink {sink!r}; it has {known}")
    # After a rewind rows may wait of later epochs as well, up to the first that is to be computed again.
    last = max(view.last_epoch, view.settled.ready_through(sink))
    last = last if through is None else min(through, last)
    shown = view.published_through[sink]
    files = [file for file in _waiting(view, sink, shown) if file.epoch <= last]
    if not files:
        raise RestoreError(f"no rows wait for sink {sink!r}; start the job instead")
    return files, last


def _epochs(files: list[StagedFile]) -> tuple[int, ...]:
    return tuple(sorted({file.epoch for file in files}))


def _waiting(view: CheckpointView, sink: str, shown: int) -> list[StagedFile]:
    """What waits for a sink that shows epochs up to `shown`. Records of format 2 do not name the sinks of
    their rows: those count for every sink. Of a lane that the commits know to be shown nothing waits, though
    others of its epoch do."""
    lanes = marks_in(view, sink)
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
