"""Going back with a whole job in parts, to a barrier that went through all of them.

Each part goes back to the commit that carries the barrier. Any of them alone may go back at any time, so that
a command that was interrupted leaves nothing wrong: called again, it goes on.
Always true: no part is touched before all of them are known to be able to go back, and not to run.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.admin.brief_term import look_for_leader
from holdfast.admin.rewind import Outlook, Rewound, outlook, refuse_unless_whole, rewind
from holdfast.checkpoint.chain.barriers import complete_barriers, ending_of_barrier
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
    found = next((each for each in retained_barriers(root) if each.number == barrier), None)
    if found is None:
        ended = ending_of_barrier(open_storage(root), barrier)
        why = (
            f"it was {ended.outcome}, and not every part retains its commit" if ended else "it has not ended"
        )
        others = ", ".join(str(each.number) for each in retained_barriers(root)) or "none"
        raise RestoreError(
            f"barrier {barrier} of {root} cannot be gone back to: {why}; those that can: {others}"
        )
    return {name: outlook(storage, found.commits[name]) for name, storage in parts_of(root).items()}


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
