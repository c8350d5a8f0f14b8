"""Going back with a whole job in parts, to a barrier that went through all of them.

Each part goes back to the commit that carries the barrier. Any of them alone may go back at any time, so that
a command that was interrupted leaves nothing wrong: called again, it goes on.
Always true: no part is touched before all of them are known to be able to go back, and not to run.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.admin.brief_term import look_for_leader
from holdfast.admin.rewind import (
    NEWEST_TOLD,
    Outlook,
    Rewound,
    outlook,
    refuse_unless_whole,
    rewind,
    time_told,
)
from holdfast.checkpoint.chain.barriers import Standing, complete_barriers, ending_of_barrier, newest_barrier
from holdfast.checkpoint.chain.checkpoint import place_of_part, read_layout
from holdfast.checkpoint.chain.history import History
from holdfast.clock import Clock
from holdfast.errors import CorruptionError, RestoreError
from holdfast.storage.contract import Storage
from holdfast.storage.urls import open_storage

BARRIERS_LOOKED_AT = 64


@dataclass(frozen=True)
class RetainedBarrier:
    """A barrier that the whole job can go back to. `commits`: of each part, the one that carries it."""

    number: int
    at_ms: int
    commits: dict[str, int]


def parts_of(root: str) -> dict[str, Storage]:
    """The checkpoints of a job's parts. RestoreError: there is no job in parts."""
    layout = read_layout(open_storage(root))
    if layout is None:
        raise RestoreError(f"there is no checkpoint of a job in parts in {root}; check the place")
    return {name: open_storage(place_of_part(root, name)) for name in layout.parts}


def retained_barriers(root: str) -> list[RetainedBarrier]:
    """The barriers that the whole job can go back to, newest first."""
    kept = {}
    for name, storage in parts_of(root).items():
        try:
            view = History(storage).load()
        except CorruptionError:
            # Which of its commits can be read is found when it is asked to go back.
            kept[name] = range(1, 1 << 62)
            continue
        kept[name] = range(view.retained_from, view.number + 1)
    return [
        RetainedBarrier(record.number, record.at_ms, record.commits)
        for record in complete_barriers(open_storage(root), BARRIERS_LOOKED_AT)
        if all(record.commits.get(name, 0) in numbers for name, numbers in kept.items())
    ]


def outlook_of_job(root: str, barrier: int) -> dict[str, Outlook]:
    """What going back to a barrier means for each part. RestoreError: it cannot be gone back to."""
    retained = retained_barriers(root)
    found = next((each for each in retained if each.number == barrier), None)
    if found is None:
        raise RestoreError(f"{_why_not(root, barrier)}; {_to_choose_from(root, retained)}")
    return {name: outlook(storage, found.commits[name]) for name, storage in parts_of(root).items()}


def _why_not(root: str, barrier: int) -> str:
    """Why a barrier cannot be gone back to."""
    storage, what = open_storage(root), f"barrier {barrier} of {root} cannot be gone back to"
    ended = ending_of_barrier(storage, barrier) if barrier > 0 else None
    if ended is not None and ended.outcome == "complete":
        for name in parts_of(root):
            if name not in ended.commits:
                return f"{what}: it did not go through part {name!r}, which the job has since"
        return f"{what}: not every part retains its commit"
    if ended is not None:
        return f"{what}: it was {ended.outcome}"
    standing = newest_barrier(storage)
    if standing == Standing(barrier, under_way=True):
        return f"{what}: it has not ended"
    return f"there is no barrier {barrier} in {root}"


def _to_choose_from(root: str, retained: list[RetainedBarrier]) -> str:
    if not retained:
        return (
            "there is none to go back to: start the job with --barrier-interval, so that there are some, "
            f"or go back with one part ({place_of_part(root, 'NAME')})"
        )
    newest = ", ".join(f"{each.number} ({time_told(each.at_ms)})" for each in retained[:NEWEST_TOLD])
    all_of_them = f"`holdfast rewind --list --checkpoint {root}` lists all"
    return f"choose one of {len(retained)}, the newest are {newest} ({all_of_them})"


def rewind_job(root: str, barrier: int, clock: Clock, *, not_running: bool = False) -> dict[str, Rewound]:
    """Let the state and positions that all parts had at a barrier hold again, for a job that is not running.

    RestoreError: a part runs, or cannot go back. RetryableError: a leader may run, or came meanwhile.
    """
    wanted = {name: each.to_commit for name, each in outlook_of_job(root, barrier).items()}
    parts = parts_of(root)
    for name, storage in parts.items():
        if look_for_leader(storage, clock, "rewind", not_running=not_running).answers:
            raise RestoreError(
                f"part {name!r} is running; stop the job (`holdfast stop --checkpoint {root}`)"
            )
    for name, storage in parts.items():
        refuse_unless_whole(storage, wanted[name])
    return {
        name: rewind(storage, wanted[name], clock, not_running=not_running) for name, storage in parts.items()
    }
