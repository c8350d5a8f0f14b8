"""Answers requests: a thread of the leader that finds them in storage and has them carried out.

    with Control(storage, term, controls, clock, say):
        ...                     # lead

Always true: a request is claimed before anything of it is done, and nothing is done that another leader has
claimed (see checkpoint.log.requests). Whatever a request asks for, the thread goes on. When the run ends, it
answers what is in hand: a stop as done if the run ended in good order, the rest as failed.
Never here: what a savepoint or a rescaling is; `Controls` does it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any, Self

import msgspec

from holdfast.checkpoint.chain.terms import is_superseded
from holdfast.checkpoint.log.requests import NOBODY, Open, Requests, State, Step
from holdfast.checkpoint.store.log_records import RequestRecord
from holdfast.clock import Clock
from holdfast.errors import CorruptionError, DefinitionError, HoldfastError, RestoreError, RetryableError
from holdfast.runtime.control.hearing import Hearing
from holdfast.runtime.control.verbs import (
    SHORT_VERBS,
    Controls,
    RescaleArguments,
    RetryArguments,
    SavepointArguments,
    StatusArguments,
    StopArguments,
    checked,
)
from holdfast.storage.contract import Storage

LOOK_SECONDS = 0.5
SWEEP_SECONDS = 60.0
IN_HAND_MAX = 4
"""Long verbs at work at once; more of them wait, as accepted."""
FINISH_TRIES = 3
GRACE_SECONDS = 10.0
"""How long the end of the run waits for what is in hand."""
ERROR_CHARS_MAX = 2_000


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a request ended."""

    state: State
    result: dict[str, Any]
    error: str = ""


class Control:
    """Answers requests while its `with` block runs."""

    def __init__(
        self,
        storage: Storage,
        term: int,
        controls: Controls,
        clock: Clock,
        say: Callable[[str], None],
        *,
        grace_seconds: float = GRACE_SECONDS,
        process: str = "",
        is_gone: Callable[[str], bool] = lambda process: True,
    ) -> None:
        """`process`: of a set of replicas, which member this is. `is_gone`: whether another process that led
        under the same term does so no more."""
        self._requests, self._is_gone = Requests(storage, term, process), is_gone
        self._controls, self._clock, self._say = controls, clock, say
        self._hearing = Hearing(storage, clock)
        self._grace_seconds = grace_seconds
        self._in_hand: dict[str, threading.Thread | None] = {}
        """Requests of ours without a final answer, and the thread at work on each."""
        self._outcomes: dict[str, Outcome] = {}
        """Written by the working threads, taken by this object's own."""
        self._stops: set[str] = set()
        self._tried: set[str] = set()
        """Claims of ours that storage did not confirm."""
        self._superseded = False
        self._unreachable = False
        self._swept = clock.monotonic() - SWEEP_SECONDS
        self._closed, self._wake = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._listen, name="holdfast-control", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed.set()
        self._wake.set()
        self._thread.join()
        self.finish(error)

    def go_on_as(self, term: int, process: str) -> None:
        """Answer as the leader of another term, which this process has claimed since."""
        self._requests.term, self._requests.process = term, process

    def look(self) -> None:
        """One round: answer what is finished, take on what is new, sweep what is old. RetryableError: storage
        failed; the next round goes on.
        """
        self._answer_finished()
        for found in self._requests.open(self._in_hand):
            self._take(found)
        now = self._clock.monotonic()
        if now - self._swept >= SWEEP_SECONDS and not self._superseded:
            self._requests.sweep(self._clock.now_ms(), self._in_hand)
            self._swept = now

    def finish(self, error: BaseException | None) -> None:
        """Answer everything in hand, once the run has ended, by `error` if not in good order."""
        deadline = self._clock.monotonic() + self._grace_seconds
        for thread in self._in_hand.values():
            if thread is not None:
                thread.join(max(0.0, deadline - self._clock.monotonic()))
        for id in self._in_hand:
            outcome = self._outcomes.get(id)
            if id in self._stops and (outcome is None or outcome.state is State.DONE):
                outcome = _stopped(outcome, error)
            self._outcomes[id] = outcome or Outcome(State.FAILED, {}, f"the leader {_ENDED}")
        self._stops.clear()
        for tries_left in reversed(range(FINISH_TRIES)):
            try:
                self._answer_finished()
                return
            except RetryableError as problem:
                if not tries_left:
                    self._say(f"requests stay unanswered until somebody leads again: {problem}")
                else:
                    self._clock.sleep(LOOK_SECONDS)

    def _listen(self) -> None:
        while not self._closed.is_set():
            try:
                self.look()
                self._unreachable = False
            except HoldfastError as problem:
                if not self._unreachable:
                    self._say(f"requests cannot be read or answered for now: {problem}")
                self._unreachable = True
            except Exception as unexpected:
                # The job goes on without an answer to requests rather than end.
                self._say(f"requests are no longer answered: {_one_line(unexpected)}; start the job again")
                return
            self._wake.wait(LOOK_SECONDS)
            self._wake.clear()

    def _take(self, found: Open) -> None:
        """Carry a request out if it is ours to carry out."""
        id, now_ms = found.id, self._clock.now_ms()
        try:
            if Step.RUNNING in found.steps:
                request = self._requests.read(id) if self._is_ours(id) else None
            elif self._superseded_now() or self._is_for_another(id):
                return
            elif len(self._in_hand) >= IN_HAND_MAX and self._is_long(id):
                if Step.ACCEPTED not in found.steps:
                    self._requests.accept(id, now_ms)
                return
            else:
                # Storage may fail with the claim written: it is recognised as ours the next time.
                self._tried.add(id)
                request = self._requests.claim(id, now_ms)
            work = self._work(request) if request is not None else None
        except (CorruptionError, DefinitionError, RestoreError) as refusal:
            self._end(id, Outcome(State.REFUSED, {}, _one_line(refusal)))
        else:
            if request is not None and work is not None:
                self._begin(request, work)
        self._tried.discard(id)

    def _is_ours(self, id: str) -> bool:
        """Whether a claim found in storage is our own. What others have claimed and left is answered."""
        claim, now_ms, ours = self._requests.claimed_by(id), self._clock.now_ms(), self._requests.term
        if self._requests.is_own(claim) and id in self._tried:
            return True
        if claim is None:
            self._requests.end(id, State.FAILED, now_ms, error=f"its leader {_ENDED}")
        elif claim.term == NOBODY:
            self._requests.end(id, State.REFUSED, now_ms, error="it was taken back by whoever asked")
        elif claim.term < ours or (claim.term == ours and self._is_gone(claim.process)):
            self._requests.end(id, State.FAILED, now_ms, error=f"the leader of term {claim.term} {_ENDED}")
        elif claim.term > ours or self._requests.is_own(claim):
            return False
        elif self._hearing.is_silent(claim.process):
            self._requests.end(id, State.FAILED, now_ms, error=f"the member that took it on {_SILENT}")
        return False

    def _is_for_another(self, id: str) -> bool:
        """Whether a request is for another member of our set of replicas."""
        if not self._requests.process:
            return False
        try:
            request = self._requests.read(id)
        except (CorruptionError, RestoreError):
            return False
        wanted = request.arguments.get("process") if request is not None else None
        return bool(wanted) and wanted != self._requests.process

    def _is_long(self, id: str) -> bool:
        """Whether a request would be one more at work. A stop is never kept waiting."""
        try:
            request = self._requests.read(id)
        except (CorruptionError, RestoreError):
            return False
        return request is not None and request.verb not in (*SHORT_VERBS, "stop")

    def _superseded_now(self) -> bool:
        """Whether a newer leader exists, who answers from now on."""
        self._superseded = is_superseded(self._requests.storage, self._requests.term)
        return self._superseded

    def _begin(self, request: RequestRecord, work: Callable[[], Any]) -> None:
        """Carry out a claimed request: at once where that is short, else in a thread."""
        id = request.id
        if request.verb in SHORT_VERBS:
            self._end(id, outcome_of(work))
            return
        if request.verb == "stop":
            self._stops.add(id)
        name = f"holdfast-{request.verb}"
        thread = threading.Thread(target=self._carry_out, args=(id, work), name=name, daemon=True)
        self._in_hand[id] = thread
        thread.start()

    def _work(self, request: RequestRecord) -> Callable[[], Any]:
        """What a request asks for, not yet done. DefinitionError: not like that, or not any more."""
        late = (self._clock.now_ms() - request.expires_ms) / 1_000
        if late > 0:
            raise DefinitionError(f"it was found {late:.0f} s too late, nobody led the job; ask again")
        try:
            arguments, controls = checked(request.verb, request.arguments), self._controls
        except DefinitionError:
            raise
        except Exception as failure:
            # Of the storage that it names, as seen from this machine. Later requests must not wait for that.
            raise DefinitionError(_one_line(failure)) from failure
        match arguments:
            case StatusArguments():
                return lambda: asdict(controls.status())
            case SavepointArguments():
                return lambda: controls.savepoint(arguments.url, arguments.format)
            case StopArguments():
                return lambda: controls.stop(arguments.savepoint, arguments.drain)
            case RescaleArguments():
                return lambda: controls.rescale(arguments.parallelism)
            case RetryArguments():
                return lambda: {"epoch": controls.retry(arguments.sink)}
        raise AssertionError(f"{request.verb} is a verb that nothing carries out")

    def _carry_out(self, id: str, work: Callable[[], Any]) -> None:
        self._outcomes[id] = outcome_of(work)
        self._wake.set()

    def _answer_finished(self) -> None:
        for id, outcome in list(self._outcomes.items()):
            # A stop that is settled ends when the run does.
            if id not in self._stops or outcome.state is not State.DONE:
                self._end(id, outcome)
                self._stops.discard(id)

    def _end(self, id: str, outcome: Outcome) -> None:
        """Answer for good; what storage does not take now is kept for the next round."""
        self._in_hand.setdefault(id, None)
        self._outcomes[id] = outcome
        self._requests.end(
            id, outcome.state, self._clock.now_ms(), result=outcome.result, error=outcome.error
        )
        del self._outcomes[id], self._in_hand[id]


_SILENT = "does not answer any more; look whether it took effect before asking again"
_ENDED = "ended while at it; look whether it took effect before asking again"


def _stopped(outcome: Outcome | None, error: BaseException | None) -> Outcome:
    """How a stop ended, now that the run has."""
    result = outcome.result if outcome is not None else {}
    return Outcome(State.DONE, result) if error is None else Outcome(State.FAILED, result, _one_line(error))


def outcome_of(work: Callable[[], Any]) -> Outcome:
    """Do the work, and say how it ended. Never raises."""
    try:
        return Outcome(State.DONE, plain_fields(work()))
    except (DefinitionError, RestoreError) as refusal:
        return Outcome(State.REFUSED, {}, _one_line(refusal))
    except Exception as failure:
        return Outcome(State.FAILED, {}, _one_line(failure))


def plain_fields(given: Any) -> dict[str, Any]:
    """What a verb gave back, as JSON: a mapping, or the fields of a record or dataclass that are no records
    themselves (a savepoint's manifest may be large).
    """
    if isinstance(given, dict):
        return dict(msgspec.to_builtins(given))
    fields = msgspec.to_builtins(given) if given is not None else {}
    if not isinstance(fields, dict):
        return {"value": fields}
    return {name: value for name, value in fields.items() if not isinstance(value, dict | list)}


def _one_line(error: BaseException | None) -> str:
    if error is None:
        return ""
    text = " ".join(str(error).split())
    if not isinstance(error, HoldfastError):
        text = f"{type(error).__name__}: {text}"
    return text[:ERROR_CHARS_MAX]
