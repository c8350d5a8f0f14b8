"""Every error that Holdfast raises, sorted by what the reader should do about it.

    HoldfastError
    ├─ DefinitionError      fix the job            (duplicate uid, guarantee not supported)
    │   ├─ MachineError         fix this machine, or run elsewhere (missing extra, no Java, no disk)
    │   └─ SinkRefused          the run has come to its end, and a sink refuses what it has still to show
    ├─ RetryableError       wait, try again
    │   ├─ StorageError         storage refused or cannot be reached: nothing was written
    │   │   └─ StorageRefused       it is there, and refuses: credentials, rights, no such bucket
    │   ├─ UnknownOutcome       a write may or may not have happened: read it back
    │   ├─ EpochFailed          the epoch's Spark job failed
    │   │   └─ EpochInterrupted     a worker, an executor or storage was lost meanwhile
    │   ├─ SinkFailed           a sink did not show a committed epoch
    │   ├─ Unavailable          the server of a source or a sink is not there now: it is waited for
    │   ├─ Unpublished          told to stop, a sink has not shown all that is committed: the next start does
    │   ├─ StopUnfinished       told to stop, the run could not finish its epoch: nothing is lost
    │   └─ SessionLost          Spark itself is gone: start the process again
    ├─ FencedOut            stop now               (a newer leader exists)
    ├─ SeatLost             stop now               (the cluster may give the seat to another node)
    ├─ UserCodeError        the user's function    (uid, epoch, key, row; cause in the text)
    ├─ PoisonEpoch          fix what it fails on   (the same epoch failed in the same way again and again)
    ├─ RestoreError         choose another point   (incompatible state, checkpoint missing)
    │   ├─ ObjectMissing        a named object is not in storage
    │   ├─ InputVanished        planned input can no longer be read
    │   ├─ SinkWentBack         a sink has lost rows that it had shown, and they are no longer staged
    │   └─ MalformedInput       planned input has a row that does not fit its schema
    └─ CorruptionError      call a human           (checksum mismatch; never retried over)

Always true: an error's text is one line that says what happened, to what, and what to do; it survives
pickling.
"""

from __future__ import annotations

UNEXPECTED = 70
"""EX_SOFTWARE, the exit code of an error that is not one of these."""


class HoldfastError(Exception):
    """The root of every error that Holdfast raises on purpose."""

    exit_code = 1


class DefinitionError(HoldfastError):
    """The job or its settings are wrong: fix them, then start again."""

    exit_code = 2


class MachineError(DefinitionError):
    """This machine lacks what the job needs: see to it, or run the job on another one."""


class SinkRefused(DefinitionError):
    """The run has read and committed everything, and a sink refuses what it has still to show of it."""


class RetryableError(HoldfastError):
    """Something outside failed and may work later."""

    exit_code = 75


class StorageError(RetryableError):
    """Storage refused or could not be reached. Nothing was written."""


class StorageRefused(StorageError):
    """Storage is there and refuses: wrong credentials, missing rights, no such bucket. It does so until a
    person sees to it."""


class WorkingStateLost(RetryableError):
    """State that is in no file is not where it was: it has to be computed again from its input."""


class UnknownOutcome(RetryableError):
    """A write may or may not have happened. Only reading it back can tell."""


class EpochFailed(RetryableError):
    """The Spark job of an epoch failed; nothing of the epoch became visible."""


class EpochInterrupted(EpochFailed):
    """The Spark job of an epoch met what was lost or not to be had: a worker that was killed, an executor,
    storage. The epoch is not at fault.
    """


class SinkFailed(RetryableError):
    """A sink raised an error of its own. The epoch is committed, and the sink is given it again."""


class Unavailable(RetryableError):
    """The server of a source or a sink is not there now. A connector raises it, with what it could not reach
    and why: the engine waits for the server and shows the wait, and the job goes on as far as it can."""


class SessionLost(RetryableError):
    """The Spark session is gone and cannot be had again in this process."""


class StopUnfinished(RetryableError):
    """The run was told to stop, and what it had in hand could not be finished: Spark was ended with it, say.
    The run is over all the same, and nothing is lost."""

    def __init__(self, cause: str) -> None:
        super().__init__(cause)
        self.cause = cause

    def __str__(self) -> str:
        return (
            f"the run was told to stop, and could not finish what it had in hand: {self.cause}; nothing is "
            "lost: the next start goes on from the newest commit"
        )


class Unpublished(RetryableError):
    """The run has stopped as it was told to, and sinks have not shown all that it has run. The next start
    shows it. `epochs`: sink -> how many; `lost`: they are in no checkpoint (at most once); `uncommitted`: how
    many epochs are not committed, because a sink that comes before the commit has not shown them."""

    exit_code = 7

    def __init__(
        self,
        epochs: dict[str, int],
        lost: bool = False,
        no_savepoint: bool = False,
        uncommitted: int = 0,
    ) -> None:
        super().__init__(epochs, lost, no_savepoint, uncommitted)
        self.epochs, self.lost, self.no_savepoint = epochs, lost, no_savepoint
        self.uncommitted = uncommitted

    def __str__(self) -> str:
        told = [f"{_epochs(count)} unpublished in sink {uid!r}" for uid, count in self.epochs.items()]
        after = "they are not shown again (at most once)" if self.lost else "the next start publishes them"
        if self.uncommitted:
            told.append(f"{_epochs(self.uncommitted)} run and not committed")
            why = "because a sink that is written before the commit has not shown them (at least once)"
            after = "the next start reads their rows again, and shows them in every sink"
        else:
            why = "though all is committed"
        without = "; no savepoint was left, because they would not be in it" if self.no_savepoint else ""
        return f"the run has stopped, with {', '.join(told)}, {why}; {after}{without}"


def _epochs(count: int) -> str:
    return f"{count} epoch{'s' * (count != 1)}"


class FencedOut(HoldfastError):
    """A newer leader exists: stop now, write nothing more."""

    # EX_NOPERM: supervisors are told (docs/how-to/run.md) not to restart on it.
    exit_code = 77

    def __init__(self, ours: int, newest: int, evidence: str) -> None:
        super().__init__(ours, newest, evidence)
        self.ours, self.newest, self.evidence = ours, newest, evidence

    def __str__(self) -> str:
        return (
            f"a newer leader exists: term {self.ours} was superseded by term {self.newest} "
            f"({self.evidence}); this driver stops and must not be restarted beside it"
        )


class SeatLost(HoldfastError):
    """The seat is no longer this node's, or it cannot be known that it is: write nothing more."""

    exit_code = 77


class UserCodeError(HoldfastError):
    """The user's function failed on a row. `may_set_aside`: the row may be at fault, and could become a dead
    letter."""

    exit_code = 3

    def __init__(
        self, uid: str, epoch: int, key: str, row: str, cause: str, may_set_aside: bool = True
    ) -> None:
        super().__init__(uid, epoch, key, row, cause, may_set_aside)
        self.uid, self.epoch, self.key, self.row, self.cause = uid, epoch, key, row, cause
        self.may_set_aside = may_set_aside

    def __str__(self) -> str:
        other = ", or set such rows aside with on_error='dead-letter'" if self.may_set_aside else ""
        return (
            f"the function of operator {self.uid!r} failed in epoch {self.epoch} on key {self.key}, "
            f"row {self.row}: {self.cause}; correct it{other}"
        )


class PoisonEpoch(HoldfastError):
    """An epoch fails in the same way every time: trying again does not help."""

    exit_code = 6

    def __init__(self, epoch: int, cause: str, checkpoint: str) -> None:
        super().__init__(epoch, cause, checkpoint)
        self.epoch, self.cause, self.checkpoint = epoch, cause, checkpoint

    def __str__(self) -> str:
        return (
            f"epoch {self.epoch} fails in the same way every time and is not tried again: {self.cause}; "
            f"correct the cause, or give up its input with `holdfast skip --epoch {self.epoch} --checkpoint "
            f"{self.checkpoint}` (with --file NAME only one file of it)"
        )


class RestoreError(HoldfastError):
    """This checkpoint cannot be continued from as asked: choose another point or other settings."""

    exit_code = 4


class ObjectMissing(RestoreError):
    """A named object is not in storage."""


class InputVanished(RestoreError):
    """Planned input was changed or deleted, so the same plan no longer reads the same rows."""


class SinkWentBack(RestoreError):
    """A sink shows less than it has shown: it came back from an older copy, or another machine took its place
    that lags behind. In lanes what is still staged is published again, and this is raised where that is not
    enough; of a table it is raised in any case."""


class MalformedInput(RestoreError):
    """A row of planned input cannot be parsed, or does not fit the schema of its source."""

    exit_code = UserCodeError.exit_code

    def __init__(self, uid: str, epoch: int, where: str, reason: str, row: str, name: str) -> None:
        super().__init__(uid, epoch, where, reason, row, name)
        self.uid, self.epoch, self.where, self.reason, self.row = uid, epoch, where, reason, row
        self.name = name

    def __str__(self) -> str:
        give_up = (
            f"the file up with `holdfast skip --file {self.name}"
            if self.name
            else (f"the epoch up with `holdfast skip --epoch {self.epoch}")
        )
        return (
            f"source {self.uid!r} cannot read a row of epoch {self.epoch}: {self.where}: {self.reason}; the "
            f"row is {self.row}; correct the schema, set such rows aside with on_error='dead-letter', or "
            f"give {give_up} --checkpoint ...`"
        )


class CorruptionError(HoldfastError):
    """Stored bytes are not what was written. Never retried over."""

    exit_code = 5


def first_line(error: BaseException) -> str:
    """What an error says first; its type where it says nothing."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def one_line(error: BaseException) -> str:
    """All that an error says, in one line; its type where it says nothing."""
    return " ".join(str(error).split()) or type(error).__name__
