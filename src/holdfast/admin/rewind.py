"""Going back to a retained commit because a user wants to.

    what it would mean -> is the commit whole? -> under a brief term, one record that makes it hold again

For a job that is not running. The job then starts as after damage: state and positions are those of the
commit, committed epochs after it are read again with the slices that they had, no sink or channel gets an
epoch twice, and sinks show what was committed first.
Always true: nothing is written unless everything that the start will need can be read: the state, rows that
wait for sinks (of epochs that are not read again), and the plans of the epochs to be read again. No commit is
given up by it, so that one can go forward again as well. A commit that holds already is left at that.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice

from msgspec.structs import replace

from holdfast.admin.brief_term import brief_term, look_for_leader
from holdfast.checkpoint.chain.checkpoint import read_job
from holdfast.checkpoint.chain.commits import RETAIN_ALL, Adopted, Chain
from holdfast.checkpoint.chain.history import DamagedChain, History
from holdfast.checkpoint.chain.low_water import lacks_state, refuse_without_base
from holdfast.checkpoint.chain.plans import committed_attempts
from holdfast.checkpoint.chain.view import CheckpointView, Head, rewound, to_manifest
from holdfast.checkpoint.store.records import Manifest, StagedFile
from holdfast.clock import Clock
from holdfast.errors import CorruptionError, RestoreError, RetryableError
from holdfast.ids import CommitNumber
from holdfast.runtime.recovery import Inspector, unreadable_plans
from holdfast.storage.contract import Storage

NEWEST_TOLD = 5
"""So many of those that can be gone back to are named where another was asked for."""


@dataclass(frozen=True)
class Outlook:
    """What going back to a commit means.

    `from_epoch`: None where the newest commit is damaged. `replayed_through`: epochs after `to_epoch` up to
    this one are read again with the slices that they had. `sinks`: up to which epoch each is recorded to have
    shown rows; it does not show those again. `waiting`: up to which epoch rows wait for a sink that shows
    less: these it shows, and not what is computed again. `channels`: up to which epoch each channel that
    leaves this part is filled; nothing of it changes. `uncoordinated`: operators whose keys are in no commit.
    `other_schemas`: operators whose state had another schema then, or that only one of the two commits has.
    `holds`: state and positions are those of the commit already.
    """

    from_commit: int
    from_epoch: int | None
    to_commit: int
    to_epoch: int
    time_ms: int
    replayed_through: int
    sinks: dict[str, int]
    waiting: dict[str, int]
    channels: dict[str, int]
    uncoordinated: tuple[str, ...]
    other_schemas: tuple[str, ...]
    holds: bool

    @property
    def replayed(self) -> int:
        """How many epochs are read again."""
        return self.replayed_through - self.to_epoch


@dataclass(frozen=True)
class Rewound:
    """A rewind that was made. `commit`: the one that says so; None: it held already, nothing was written."""

    outlook: Outlook
    commit: int | None


@dataclass(frozen=True)
class RetainedCommit:
    """A commit that can be gone back to: the state after `epoch`, at `at_ms`."""

    number: int
    epoch: int
    at_ms: int


def retained_commits(storage: Storage) -> Iterator[RetainedCommit]:
    """The commits that a job, or a part, can go back to, newest first; those whose record cannot be read are
    left out."""
    history = History(storage)
    head, _ = _end_of(history)
    for number in reversed([each for each in history.numbers() if each >= max(head.retained_from, 1)]):
        with suppress(CorruptionError):
            record = history.record(number)
            yield RetainedCommit(number, record.last_epoch, record.clock_ms)


def outlook(storage: Storage, to: int) -> Outlook:
    """What going back to commit `to` means; reads records alone. RestoreError: it cannot be gone back to."""
    history = History(storage)
    head, newest = _end_of(history)
    target = _retained(history, head, to)
    base = rewound(head, target)
    now, then = ({each.uid: each for each in view.operators} for view in (newest or target, target))
    others = {uid for uid in {*now, *then} if now.get(uid) != then.get(uid)}
    own = {*target.uncoordinated, *(newest or target).uncoordinated}
    return Outlook(
        from_commit=head.number,
        from_epoch=newest.last_epoch if newest is not None else None,
        to_commit=to,
        to_epoch=target.last_epoch,
        time_ms=target.clock_ms,
        replayed_through=max(
            target.last_epoch,
            *committed_attempts(history, base),
            *base.published_through.values(),
            *base.settled.through.values(),
        ),
        waiting=_waiting(base),
        sinks=base.published_through,
        channels={uid: channel.through for uid, channel in base.channels.items()},
        uncoordinated=tuple(sorted(own)),
        other_schemas=tuple(sorted(others)),
        holds=newest is not None and _brought_back(newest) == _brought_back(base),
    )


def rewind(storage: Storage, to: int, clock: Clock, *, not_running: bool = False) -> Rewound:
    """Make the state and positions of commit `to` hold again, for a job that is not running. `not_running`:
    the caller knows that no leader is left.

    RestoreError: the job runs, or the commit cannot be gone back to. RetryableError: a leader may run, or
    came meanwhile.
    """
    found = outlook(storage, to)
    if found.holds:
        return Rewound(found, None)
    leader = look_for_leader(storage, clock, "rewind", not_running=not_running)
    if leader.answers:
        raise RestoreError(
            f"the job is running; stop it (`holdfast stop --checkpoint {storage.url}`), then go back"
        )
    # Before the term is claimed: reading all of the state takes its time.
    damaged = refuse_unless_whole(storage, to)
    with brief_term(storage, leader.newest, clock) as (term, run):
        chain = Chain(storage, retain=RETAIN_ALL)
        head, _ = _end_of(chain)
        if head.number != found.from_commit:
            raise RetryableError(
                f"a leader has committed {head.number} meanwhile: nothing was written; stop the job and look "
                "again with `holdfast checkpoints list`"
            )
        done = chain.rewind(head, CommitNumber(to), term=term, run=run, damaged=damaged)
    if isinstance(done, Adopted):
        raise RetryableError(
            f"another leader has committed {done.view.number} meanwhile, and that counts; stop the job and "
            "look again with `holdfast checkpoints list`"
        )
    return Rewound(found, done.view.number)


def _end_of(history: History) -> tuple[Head, CheckpointView | None]:
    """The end of the chain, and the view there; None: it is damaged."""
    try:
        newest = history.load()
    except DamagedChain as damage:
        return damage.head, None
    return newest.head, newest


def _retained(history: History, head: Head, to: int) -> CheckpointView:
    """The checkpoint at commit `to`. RestoreError: it is not retained, or its records do not verify."""
    url = history.storage.url
    if not head.number:
        raise RestoreError(f"there are no commits in {url} yet, and nothing to go back to; start the job")
    first = max(head.retained_from, 1)
    if not first <= to <= head.number:
        why = f"commit {to} of {url} is given up" if 1 <= to < first else f"there is no commit {to} in {url}"
        newest = [
            f"{each.number} (epoch {each.epoch}, {time_told(each.at_ms)})"
            for each in islice(retained_commits(history.storage), NEWEST_TOLD)
        ]
        raise RestoreError(
            f"{why}; choose one from {first} to {head.number}, the newest are {', '.join(newest)} "
            f"(`holdfast rewind --list --checkpoint {url}` lists all)"
        )
    try:
        return history.view_at(to)
    except CorruptionError as damage:
        raise _damaged(to, str(damage)) from damage


def refuse_unless_whole(storage: Storage, to: int) -> list[StagedFile]:
    """Read everything that a start from commit `to` will need. Gives what waits for sinks and is damaged: it
    is computed again."""
    history, problems = History(storage), list[str]()
    head, _ = _end_of(history)
    base = rewound(head, _retained(history, head, to))
    inspector = Inspector(storage, read_job(storage).key_groups, problems.append)
    if not inspector.restorable(base):
        raise _damaged(to, "; ".join(problem.removeprefix("DAMAGE: ") for problem in problems))
    if lacks_state(base):
        refuse_without_base(history, base, head.number, head.retained_from)
    if why := unreadable_plans(history, base):
        raise _damaged(to, why)
    return inspector.damaged_output(base)


def time_told(ms: int) -> str:
    """A time as people read it."""
    return datetime.fromtimestamp(ms / 1_000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _waiting(view: CheckpointView) -> dict[str, int]:
    """Sink uid -> the newest epoch of which rows wait for it."""
    shown = view.published_through
    return {
        sink: file.epoch for file in view.staged for sink in file.sinks if file.epoch > shown.get(sink, 0)
    }


def _damaged(to: int, why: str) -> RestoreError:
    return RestoreError(
        f"commit {to} cannot be gone back to, and nothing was written: {why}; choose another commit "
        "(`holdfast checkpoints verify N` reads one whole)"
    )


def _brought_back(view: CheckpointView) -> Manifest:
    """What a rewind decides of a checkpoint. Of `rewound` and the newest one it differs unless a rewind would
    change nothing."""
    return replace(to_manifest(view), own_keys=())
