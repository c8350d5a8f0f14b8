"""Savepoints of a job in parts: one of each part, all taken at one barrier.

    begin a barrier -> every part carries it in a commit, which is pinned as soon as it is seen -> complete
    -> copy each part's commit below `parts/` -> the layout, last: without it there is no savepoint

At a barrier what is in the channels is read: nothing of them is copied. Any process that can read and write
the storage may do it, whoever leads the parts. To stop with a savepoint is to begin a barrier at which every
part ends its run, and to copy when all have ended: until then they take in, and acknowledge, what comes from
sources that cannot be read again. That barrier is complete only then: as long as it is under way, a leader
that takes over a part at it ends, too.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from holdfast.checkpoint.chain.barriers import (
    BarrierUnderWay,
    begin_barrier,
    end_barrier,
    forget_barriers,
)
from holdfast.checkpoint.chain.checkpoint import Checkpoint, place_of_part, read_job, read_layout
from holdfast.checkpoint.chain.commits import Chain
from holdfast.checkpoint.chain.history import History
from holdfast.checkpoint.chain.pins import pin, unpin
from holdfast.checkpoint.chain.plans import Plans
from holdfast.checkpoint.chain.replica_sets import all_have_ended
from holdfast.checkpoint.chain.retention import Retention
from holdfast.checkpoint.chain.terms import newest_ending
from holdfast.checkpoint.chain.view import waited_for
from holdfast.checkpoint.savepoints.stored_savepoint import dispose_savepoint
from holdfast.checkpoint.savepoints.take import refuse_without_state, take_savepoint
from holdfast.checkpoint.store import names
from holdfast.checkpoint.store.envelope import seal
from holdfast.checkpoint.store.records import LayoutRecord
from holdfast.checkpoint.store.write_once import write_once
from holdfast.clock import Clock
from holdfast.errors import HoldfastError, RestoreError, RetryableError
from holdfast.runtime.parts.channel_source import Position
from holdfast.runtime.parts.passage import Channels, Passage, newest_carried
from holdfast.runtime.progress import Message
from holdfast.runtime.savepoints.run_savepoints import refuse_target, waiting_in_words
from holdfast.storage.contract import Storage
from holdfast.storage.urls import open_storage

ALIGN_SECONDS = 120.0
"""How long a barrier may take to come through all parts before it is given up."""
PIN_SECONDS = 3_600.0
LOOK_SECONDS = 0.05


@dataclass(frozen=True, kw_only=True)
class JobSavepoint:
    """A savepoint of a whole job. `commits`: of each part, the one that it was taken of.
    `waiting`: what sinks have still to show of what came before it, by the newest commits, in words."""

    url: str
    job: str
    barrier: int
    commits: dict[str, int]
    waiting: str = ""


def take_job_savepoint(
    root: str,
    url: str,
    clock: Clock,
    by: str,
    align_seconds: float = ALIGN_SECONDS,
    stop_rest: Callable[[], None] | None = None,
    say: Message = lambda text: None,
) -> JobSavepoint:
    """Take a savepoint of the job in parts whose checkpoint is at `root`, while it goes on. Another barrier
    that is under way is waited for, as long as this one may take; `say` is told of that.

    `stop_rest`: the run of every part ends at the barrier; this is called after it, whether or not there will
    be a savepoint, to stop the parts that the barrier has not ended.
    RetryableError: the barrier did not come through all parts in time, or could not begin; nothing is left of
    it. Or, where the runs end at it, a sink has not shown what came before it, or one has not ended.
    """
    layout, parts = refuse_savepoint(root, url)
    taken = _barrier(open_storage(root), parts, layout.channels, clock, by, align_seconds, stop_rest, say)
    with taken as (number, commits):
        _copy(parts, commits, layout, url, clock, by)
        waiting = waiting_in_words(_left_to_show(parts, commits))
    return JobSavepoint(url=url, job=layout.job, barrier=number, commits=dict(commits), waiting=waiting)


def refuse_savepoint(root: str, url: str) -> tuple[LayoutRecord, dict[str, Storage]]:
    """Refuse a savepoint that could not be taken, before anything is stopped for it; gives of what it would
    be. RestoreError."""
    refuse_target(url)
    layout = read_layout(open_storage(root))
    if layout is None:
        raise RestoreError(f"there is no checkpoint of a job in parts in {root}; check the place")
    parts = {name: open_storage(place_of_part(root, name)) for name in layout.parts}
    for storage in parts.values():
        refuse_without_state(History(storage).load(), storage.url)
    return layout, parts


@contextlib.contextmanager
def _barrier(
    root: Storage,
    parts: Mapping[str, Storage],
    channels: Channels,
    clock: Clock,
    by: str,
    align_seconds: float,
    stop_rest: Callable[[], None] | None = None,
    say: Message = lambda text: None,
) -> Iterator[tuple[int, dict[str, int]]]:
    """Within it, the commits that carry a barrier stay; gives its number and these. With `stop_rest` the runs
    of all parts have ended there."""

    def begin() -> int:
        lasts_ms, above = round(align_seconds * 2_000), newest_carried(parts.values())
        return begin_barrier(root, by, clock.now_ms(), lasts_ms, ends=stop_rest is not None, above=above)

    number = _begun(begin, clock, align_seconds, say)
    rest = contextlib.ExitStack()
    if stop_rest is not None:
        rest.callback(stop_rest)

    def keep(part: Storage, commit: int) -> None:
        now_ms = clock.now_ms()
        expires_ms = now_ms + round(PIN_SECONDS * 1_000)
        pin(History(part), _pin_name(number), commit, by, now_ms, expires_ms)

    try:
        try:
            commits = _await_all(Passage(parts, channels, number, keep), clock, align_seconds)
            if stop_rest is not None:
                _await_shown(parts, commits, clock, align_seconds)
                rest.close()
                _await_ended(parts, clock, align_seconds)
        except BaseException as cause:
            end_barrier(root, number, "aborted", clock.now_ms(), reason=str(cause)[:500])
            raise
        ended = end_barrier(root, number, "complete", clock.now_ms(), commits)
        if ended.outcome != "complete":
            raise RetryableError(f"barrier {number} was given up by another ({ended.reason}); try again")
        yield number, commits
    finally:
        for storage in parts.values():
            with contextlib.suppress(HoldfastError):
                unpin(storage, [_pin_name(number)])
        with contextlib.suppress(HoldfastError):
            forget_barriers(root)
        rest.close()


def _begun(begin: Callable[[], int], clock: Clock, seconds: float, say: Message) -> int:
    """Begin a barrier as soon as no other is under way; gives its number."""
    give_up, told = clock.monotonic() + seconds, ""
    while True:
        try:
            return begin()
        except BarrierUnderWay as other:
            if clock.monotonic() > give_up:
                raise
            if str(other) != told:
                told = str(other)
                say(f"{told.partition(';')[0]}; waiting for its end, up to {seconds:.0f} s")
            clock.sleep(LOOK_SECONDS)


def _pin_name(number: int) -> str:
    return f"barrier-{number}"


def _await_all(passage: Passage, clock: Clock, align_seconds: float) -> dict[str, int]:
    give_up = clock.monotonic() + align_seconds
    while (commits := passage.look()) is None:
        if clock.monotonic() > give_up:
            missing = ", ".join(map(repr, passage.missing))
            raise RetryableError(
                f"barrier {passage.number} did not come through part {missing} in {align_seconds:.0f} s and "
                "was given up; see that every part runs (`holdfast status`), and try again"
            )
        clock.sleep(LOOK_SECONDS)
    return commits


def _await_shown(
    parts: Mapping[str, Storage], commits: Mapping[str, int], clock: Clock, seconds: float
) -> None:
    """Wait until sinks show all that was committed up to a barrier that ends the runs: a savepoint holds no
    output, and nobody would show it who goes on from there. RetryableError: a run has ended before that."""
    give_up = clock.monotonic() + seconds
    for part, storage in parts.items():
        epoch = History(storage).view_at(commits[part]).last_epoch
        while True:
            over = newest_ending(storage) is not None or clock.monotonic() > give_up
            behind = waited_for(History(storage).load(), epoch)
            if not behind:
                break
            if over:
                raise RetryableError(
                    f"no savepoint was left: sink {behind[0]!r} of part {part!r} has not shown all epochs up "
                    f"to {epoch}, and a savepoint does not hold them; start the job, which shows them, and "
                    "stop it with a savepoint again"
                )
            clock.sleep(LOOK_SECONDS)


def _await_ended(parts: Mapping[str, Storage], clock: Clock, seconds: float) -> None:
    """Wait until nothing runs any more that acknowledges what a savepoint could not have. RetryableError."""
    give_up = clock.monotonic() + seconds
    for part, storage in parts.items():
        while not all_have_ended(storage):
            if clock.monotonic() > give_up:
                raise RetryableError(
                    f"no savepoint was left: part {part!r}, or a member of its set, is not known to have "
                    "ended, and what it may still acknowledge to senders would be in no savepoint; see that "
                    "it has ended, start the job, and stop it with a savepoint again"
                )
            clock.sleep(LOOK_SECONDS)


def _left_to_show(parts: Mapping[str, Storage], commits: Mapping[str, int]) -> dict[str, int]:
    """Of each sink that rows up to the barrier wait for: how many epochs."""
    left: dict[str, int] = {}
    for part, storage in parts.items():
        epoch, newest = History(storage).view_at(commits[part]).last_epoch, History(storage).load()
        left |= {sink: epoch - newest.published_through[sink] for sink in waited_for(newest, epoch)}
    return left


def _copy(
    parts: Mapping[str, Storage],
    commits: Mapping[str, int],
    layout: LayoutRecord,
    url: str,
    clock: Clock,
    by: str,
) -> None:
    targets = {name: open_storage(place_of_part(url, name)) for name in parts}
    epochs = {name: History(parts[name]).view_at(commit).last_epoch for name, commit in commits.items()}
    try:
        for name, storage in parts.items():
            chain = Chain(storage)
            checkpoint = Checkpoint(storage, read_job(storage), chain, Plans(storage), Retention(chain))
            # A part that did not wait may have read on behind the barrier: that is read again.
            positions = {
                uid: Position(epochs[before]).stored
                for uid, (before, after) in layout.channels.items()
                if after == name
            }
            take_savepoint(
                checkpoint, commits[name], targets[name], id=uuid.uuid4().hex, stopped=False, clock=clock,
                holder=by, positions=positions, held=True,
            )  # fmt: skip
        write_once(open_storage(url), names.layout(1), seal("layout", layout))
    except BaseException:
        for target in targets.values():
            with contextlib.suppress(HoldfastError):
                dispose_savepoint(target, clock.now_ms(), force=True)
        raise
