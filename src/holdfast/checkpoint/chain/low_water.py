"""The low-water position of a part whose state is in no checkpoint: from where its rows are read again.

A commit of such a part says which epoch is the first whose rows its open state still needs (`needs_from`).
State is had again by going back to a commit before that epoch, with no state at all, and reading the epochs
from there on as they were.
Always true: from every commit that is retained for going back, such a commit can be found, or the commit is
refused as a place to go back to.
"""

from __future__ import annotations

from holdfast.checkpoint.chain.history import History
from holdfast.checkpoint.chain.view import CheckpointView
from holdfast.errors import CorruptionError, RestoreError
from holdfast.ids import CommitNumber


def lacks_state(view: CheckpointView) -> bool:
    """Whether something is open that is in no file: rows have to be read again to have it."""
    return 0 < view.needs_from <= view.last_epoch


def base_of(history: History, view: CheckpointView, newest: int, oldest: int) -> CommitNumber | None:
    """The newest commit, from `oldest` to `newest`, from which on the rows hold all that is open in a view.
    None: there is none that can be read."""
    for number in range(newest, max(oldest, 1) - 1, -1):
        try:
            if history.view_at(number).last_epoch < view.needs_from:
                return CommitNumber(number)
        except CorruptionError:
            continue
    return None


def refuse_without_base(history: History, view: CheckpointView, newest: int, oldest: int) -> CommitNumber:
    """The commit to go back to for the state of a view. RestoreError: it is no longer there."""
    base = base_of(history, view, newest, oldest)
    if base is None:
        raise RestoreError(
            f"the state after epoch {view.last_epoch} is in no checkpoint, and the rows that it is made of "
            f"(from epoch {view.needs_from} on) were let go; choose a newer commit"
        )
    return base


def keep_for(history: History, view: CheckpointView, oldest: int) -> int:
    """The first commit to keep, so that one can go back to each from `oldest` to the newest, `view`."""
    oldest = max(oldest, view.retained_from, 1)
    if oldest > view.number:
        oldest = view.number
    try:
        target = history.view_at(oldest) if oldest else view
    except CorruptionError:
        return view.retained_from
    if not lacks_state(target):
        return max(oldest, 1)
    base = base_of(history, target, view.number, view.retained_from)
    return min(oldest, base) if base is not None else view.retained_from
