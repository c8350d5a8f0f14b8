"""Obeys the restart strategy: writes every failure down, waits, or lets the failure end the run.

Always true: what happened is in storage before the wait begins, unless storage is what failed: then it is
written with the next event. Nothing is retried that cannot get better by waiting.
"""

from __future__ import annotations

import contextlib
import random
import re
import socket
import threading
from collections.abc import Callable

from msgspec.structs import replace

from holdfast.checkpoint.log.incidents import counted, read_failures, record_failure, times_retried
from holdfast.checkpoint.store.log_records import FailureRecord
from holdfast.errors import (
    CorruptionError,
    DefinitionError,
    EpochFailed,
    EpochInterrupted,
    FencedOut,
    HoldfastError,
    PoisonEpoch,
    RestoreError,
    RetryableError,
    SeatLost,
    StopUnfinished,
    UserCodeError,
)
from holdfast.ids import NO_EPOCH
from holdfast.runtime.leader_context import LeaderContext
from holdfast.runtime.restart_strategy import Failure, GiveUp, Restart, decide
from holdfast.runtime.spark_failures import explained
from holdfast.storage.checksums import checksum

FINAL = (DefinitionError, FencedOut, SeatLost, RestoreError, CorruptionError)
"""Waiting makes none of these better."""
MESSAGE_CHARS_MAX = 2_000
TOLD_MS = 600_000
"""How long the text of a failure need not be told again when the same one comes again."""
CAUSE_CHARS_MAX = 500
_VOLATILE = re.compile(
    r"0x[0-9a-f]+"
    r"|(?<=\bdata/)\d{12}/[^\s;,'\")]+"
    r"|(?<=blockmgr-|_shuffle_)[0-9a-f-]{36}|(?<=spark-|Files-|local_)[0-9a-f-]{36}"
    r"|\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?"
    r"|\b(?:\d{1,3}(?:\.\d{1,3}){3}|localhost):\d+"
    r"|\bo\d+(?=\.\w)"
    r"|(?i:(?<=\btask )|(?<=\bstage )|(?<=\bexecutor )|(?<=\bjob )|(?<=\btid )|(?<=\bpid )|(?<=\bprocess ))"
    r"\d+(?:\.\d+)?"
    r"|\b\d+(?:\.\d+)?(?= ?(?:ms|milliseconds|s|sec|seconds|minutes)\b)"
)
"""What differs from one time to the next though the same thing happens: addresses, files that were written
for one attempt, ports, times, Spark's numbers of tasks and stages. Every other number may be what failed.
"""


class Restarts:
    """The failures of one job, as seen by one leader."""

    def __init__(self, context: LeaderContext, chance: Callable[[], float] = random.random) -> None:
        self._context, self._chance = context, chance
        self._storage, self._say = context.checkpoint.storage, context.monitor.say
        self._history: list[FailureRecord] | None = None
        self._unwritten: list[FailureRecord] = []
        self._told: list[FailureRecord] = []
        """The failure that was told last, as often as it has come since."""
        self.count = 0
        """How often the job was tried again on this checkpoint, by every leader so far. Never goes back."""

    def recall(self) -> None:
        """Go on counting where the last leader ended, as far as storage tells."""
        with contextlib.suppress(RetryableError):
            self.count = max(self.count, times_retried(self._storage))

    def after(self, failure: BaseException, epoch: int, stopping: threading.Event) -> None:
        """Wait until it is time to try again. Raises when the run ends instead: also when it is told to stop,
        before or meanwhile. `epoch`: the one that was being run; NO_EPOCH, which never becomes poison: none
        is to blame.
        """
        if not isinstance(failure, Exception) or isinstance(failure, FencedOut | SeatLost):
            raise failure
        if isinstance(failure, FINAL):
            record = self._record(failure, epoch)
            self._write(replace(record, decision="give-up", reason="waiting does not make it better"))
            raise failure
        if isinstance(failure, UserCodeError):
            epoch = failure.epoch
        elif is_outside(failure):
            epoch = NO_EPOCH
        record, known = self._record(failure, epoch), self._known()
        if stopping.is_set():
            told = replace(record, decision="stopped", reason="the run was told to stop", retried=self.count)
            self._write(told)
            raise _unfinished(failure) from failure
        self.count = max(self.count, *(past.retried for past in known), 0)
        failed = [Failure(past.at_ms, past.epoch, past.cause) for past in [*counted(known), record]]
        decision = decide(self._context.settings.restart, failed, self._chance())
        self.count += isinstance(decision, Restart)
        self._write(replace(_decided(record, decision), retried=self.count))
        if isinstance(decision, GiveUp):
            self._give_up(failure, epoch, decision)
        else:
            seconds = decision.delay_ms / 1_000
            where = f" in epoch {epoch}" if epoch else ""
            self._say(f"FAILURE{where}: {self._news(record)}; trying again in {seconds:.1f} s")
            if stopping.wait(seconds):
                raise _unfinished(failure) from failure

    def _news(self, record: FailureRecord) -> str:
        """What is new of a failure: its text, unless that was told not long ago."""
        self._told.append(record)
        first = self._told[0]
        old = record.at_ms - first.at_ms >= TOLD_MS
        if old or (first.epoch, first.message) != (record.epoch, record.message):
            self._told = [record]
        return record.message if len(self._told) == 1 else f"the same again, {len(self._told)} times now"

    def stopped(self) -> None:
        """The run ended cleanly: failures before now count no more."""
        known = self._known()
        if counted(known):
            self.count = max(self.count, *(past.retried for past in known))
            record = self._record(HoldfastError("stopped"), 0)
            self._write(
                replace(record, kind="", cause="", message="", decision="stopped", retried=self.count)
            )

    def _give_up(self, failure: Exception, epoch: int, decision: GiveUp) -> None:
        self._say(f"GIVING UP: {decision.reason}")
        if decision.poison is None or isinstance(failure, UserCodeError):
            raise failure
        raise PoisonEpoch(epoch, str(failure), self._storage.url) from failure

    def _known(self) -> list[FailureRecord]:
        """The history; read once, since only the leader adds to it."""
        if self._history is None:
            try:
                self._history = read_failures(self._storage)
            except RetryableError:
                return list(self._unwritten)
        return [*self._history, *self._unwritten]

    def _write(self, record: FailureRecord) -> None:
        self._unwritten.append(record)
        try:
            while self._unwritten:
                record_failure(self._storage, self._unwritten[0])
                written = self._unwritten.pop(0)
                if self._history is not None:
                    self._history.append(written)
        except RetryableError as refused:
            self._say(f"a failure could not be written down and will be with the next: {refused}")

    def _record(self, failure: Exception, epoch: int) -> FailureRecord:
        told = _told(failure)
        message = told if isinstance(failure, HoldfastError) else f"{type(failure).__name__}: {told}"
        return FailureRecord(
            at_ms=self._context.clock.now_ms(),
            term=self._context.term,
            run=self._context.run,
            host=socket.gethostname(),
            epoch=epoch,
            kind=type(failure).__name__,
            cause=cause_of(failure),
            message=message[:MESSAGE_CHARS_MAX],
            decision="",
        )


def _unfinished(failure: Exception) -> Exception:
    """What ends a run that was told to stop and has failed: what the user has to see to, or the failure as
    what kept the stop from being finished."""
    if isinstance(failure, StopUnfinished):
        return StopUnfinished(failure.cause)
    if isinstance(failure, RetryableError) or is_outside(failure):
        return StopUnfinished(_told(failure))
    return failure


def is_outside(failure: Exception) -> bool:
    """Whether something outside was lost or not to be had, storage say: it may stay so for any time."""
    if isinstance(failure, EpochFailed):
        return isinstance(failure, EpochInterrupted)
    if isinstance(failure, HoldfastError):
        return isinstance(failure, RetryableError)
    return explained(failure).outside


def cause_of(failure: Exception) -> str:
    """What failed, in words that stay the same when it happens again, and are others for another cause."""
    # Which of the rows that a function fails on comes first may differ: what it raised, and where, does not.
    told = f"{failure.uid}: {failure.cause}" if isinstance(failure, UserCodeError) else _told(failure)
    text = f"{type(failure).__name__}: {_VOLATILE.sub('#', told)}"
    if len(text) <= CAUSE_CHARS_MAX:
        return text
    return f"{text[: CAUSE_CHARS_MAX - 34]}: {checksum(text.encode())}"


def _told(failure: Exception) -> str:
    """An error in one line."""
    text = str(failure) if isinstance(failure, HoldfastError) else explained(failure).reason
    return " ".join(text.split())


def _decided(record: FailureRecord, decision: Restart | GiveUp) -> FailureRecord:
    if isinstance(decision, Restart):
        return replace(record, decision="restart", delay_ms=decision.delay_ms)
    return replace(record, decision="give-up", reason=decision.reason, poison=decision.poison is not None)
