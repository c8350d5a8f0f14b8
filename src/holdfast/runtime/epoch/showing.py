"""When a sink is shown an epoch, by the guarantee of the job: what becomes of one that it does not show, what
is said of that, and whether it may be shown it once more.

Always true: what is said names a way out that exists: what waits in the checkpoint can be put aside, and
nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any

import pyarrow as pa


class Showing(Enum):
    """When a sink is shown an epoch: what becomes of one that it does not show, and what a person can do."""

    AFTER_COMMIT = "after-commit"
    """It waits in storage."""
    BEFORE_COMMIT = "before-commit"
    """It is not committed, nor is any after it: the next start reads its rows again."""
    ONCE = "once"
    """After a commit that has no rows of it: they end with the run."""

    @property
    def meanwhile(self) -> str:
        """What goes on while the sink refuses an epoch."""
        if self is Showing.BEFORE_COMMIT:
            return "nothing is committed until then"
        return "all else goes on until its queue is full"

    def refused(self, uid: str, epoch: int, why: str, url: str) -> str:
        """What is said of a sink that refuses an epoch: first how to mend it, then how to do without."""
        committed = {
            Showing.AFTER_COMMIT: ", which is committed",
            Showing.BEFORE_COMMIT: ", which is committed only after that",
            Showing.ONCE: "",
        }[self]
        again = "" if self is Showing.ONCE else ", or start the job again if it has ended"
        without = {
            Showing.AFTER_COMMIT: "or, to go on without showing it there, stop the job and put its rows "
            f"aside with `{set_aside_command(uid, url)}`",
            Showing.BEFORE_COMMIT: "or, to go on without that sink, stop the job and start it without it",
            Showing.ONCE: "what waits for it is lost when the run ends (at most once)",
        }[self]
        return (
            f"sink {uid!r} cannot show epoch {epoch}{committed}: {why}; "
            f"{tried_again(uid, url)}{again}; {without}"
        )

    def failed(self, uid: str, url: str) -> str:
        """What is said of an epoch that a sink has raised an error of its own for."""
        if self is Showing.ONCE:
            return "what it has not shown of it is lost (at most once)"
        if self is Showing.BEFORE_COMMIT:
            return (
                "the epoch is not committed, and is run and shown again; if the sink can never show it, stop "
                "the job and start it without that sink"
            )
        return (
            "the epoch is committed and is tried again; if the sink can never show it, stop the job and put "
            f"its rows aside with `{set_aside_command(uid, url)}`"
        )


class RowsOfPart:
    """Loads the rows of a part, and knows whether anybody has taken them: before that none can be shown."""

    def __init__(self, load: Callable[[], pa.Table]) -> None:
        self._load, self.taken = load, False

    def __call__(self) -> pa.Table:
        self.taken = True
        return self._load()

    def __reduce__(self) -> tuple[Any, ...]:
        # Another process takes them.
        self.taken = True
        return RowsOfPart, (self._load,)


def tried_again(uid: str, url: str) -> str:
    """How a person has a sink tried again that refuses."""
    command = f"holdfast sinks retry {uid} --checkpoint {url}"
    return f"once that is mended, have the sink tried again with `{command}`"


def set_aside_command(uid: str, url: str) -> str:
    """What a user types to put aside what waits for a sink."""
    return f"holdfast sinks set-aside {uid} --checkpoint {url} --to DIRECTORY"
