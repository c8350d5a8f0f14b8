"""Requests to the leader, and its answers, in storage.

    requests/<id>              verb, arguments, who asked and when
    answers/<id>/1-accepted    a leader is there, but has other work first
    answers/<id>/2-running     claimed, by put-if-absent: its writer may carry the request out, once
    answers/<id>/3-ended       done, refused or failed

Always true: a request is carried out at most once. Only the leader that wrote `2-running` acts; a successor
that finds it without `3-ended` answers `failed` and does not repeat it. Members of a set of replicas lead
under one term: of them, too, only the one that wrote it acts. A request is deleted before its
answers are, and is read after it was claimed: so one that was answered never looks new.
Never here: what a verb does, and waiting for it (see runtime.control).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import StrEnum

from holdfast.checkpoint.store import names
from holdfast.checkpoint.store.envelope import seal, unseal
from holdfast.checkpoint.store.log_records import AnswerRecord, RequestRecord
from holdfast.checkpoint.store.records import Json
from holdfast.checkpoint.store.write_once import write_once
from holdfast.errors import CorruptionError, DefinitionError, ObjectMissing, RestoreError
from holdfast.storage.contract import Storage

EXPIRES_MS = 600_000
"""How long a request waits for a leader. Clocks of asker and leader may differ by less than this."""
KEPT_MS = 86_400_000
KEPT_MAX = 1_000
NOBODY = 0
"""The term in a claim by which the asker takes a request back."""

_ID = re.compile(r"\d{13}-[0-9a-f]{8,32}")


class State(StrEnum):
    """What became of a request: WAITING -> ACCEPTED -> RUNNING -> DONE, REFUSED or FAILED.

    ACCEPTED may be left out. REFUSED: nothing was done. FAILED: something may have been.
    """

    WAITING = "waiting"
    ACCEPTED = "accepted"
    RUNNING = "running"
    DONE = "done"
    REFUSED = "refused"
    FAILED = "failed"

    @property
    def ended(self) -> bool:
        return self in (State.DONE, State.REFUSED, State.FAILED)


class Step(StrEnum):
    """The names of a request's answers, in order."""

    ACCEPTED = "1-accepted"
    RUNNING = "2-running"
    ENDED = "3-ended"


@dataclass(frozen=True, slots=True)
class Asked:
    """A request and its newest answer. `request` is None where its record is damaged."""

    id: str
    request: RequestRecord | None
    answer: AnswerRecord | None

    @property
    def state(self) -> State:
        return State.WAITING if self.answer is None else State(self.answer.state)


def ask(
    storage: Storage,
    verb: str,
    arguments: dict[str, Json],
    *,
    token: str,
    asked_by: str,
    now_ms: int,
) -> RequestRecord:
    """Leave a request for the leader. `token`: random hex digits, at least 8, that make the id unique."""
    record = RequestRecord(
        id=check_id(f"{now_ms:013d}-{token}"),
        verb=verb,
        arguments=arguments,
        asked_by=asked_by,
        asked_ms=now_ms,
        expires_ms=now_ms + EXPIRES_MS,
    )
    data = seal("request", record)
    if write_once(storage, names.request(record.id), data) != data:
        raise DefinitionError(f"request {record.id} exists already; ask again with another token")
    return record


def check_id(id: str) -> str:
    """Refuse what cannot be the id of a request, before it becomes part of a name in storage."""
    if not _ID.fullmatch(id):
        raise DefinitionError(f"{id[:80]!r} is not the id of a request; ids look like 1760000000000-0a1b2c3d")
    return id


def read_asked(storage: Storage, id: str) -> Asked:
    """A request as it stands. RestoreError: there is none of this id."""
    try:
        answer = _newest_answer(storage, check_id(id))
        return Asked(id, _request_or_damaged(storage, id, answer), answer)
    except ObjectMissing as cause:
        raise RestoreError(
            f"there is no request {id} in {storage.url}; old ones are swept after a day"
        ) from cause


def take_back(storage: Storage, id: str, now_ms: int, why: str) -> Asked:
    """See that the request is not carried out, if no leader has begun. Returns how it stands then."""
    claim = AnswerRecord(request=id, state=State.RUNNING, term=NOBODY, at_ms=now_ms)
    if _wrote(storage, Step.RUNNING, claim):
        ended = AnswerRecord(request=id, state=State.REFUSED, term=NOBODY, at_ms=now_ms, error=why)
        _wrote(storage, Step.ENDED, ended)
    return read_asked(storage, id)


def forget(storage: Storage, id: str) -> None:
    """Remove a request that only asked a question, and its answers."""
    storage.delete([names.request(id)])
    storage.delete([entry.name for entry in storage.list(names.answers_of(id))])


@dataclass(frozen=True, slots=True)
class Open:
    """A request without a final answer, and the answers that it has."""

    id: str
    steps: frozenset[str]


class Requests:
    """The leader's side. For one thread. `process`: of a set of replicas, which member this is."""

    def __init__(self, storage: Storage, term: int, process: str = "") -> None:
        self.storage, self.term, self.process = storage, term, process
        self._ended: set[str] = set()

    def open(self, in_hand: Collection[str] = ()) -> list[Open]:
        """Every request without a final answer and not in hand, oldest first. Nothing new: one listing."""
        listed = _ids(entry.name for entry in self.storage.list(names.REQUESTS))
        self._ended.intersection_update(listed)
        ids = [id for id in listed if id not in self._ended and id not in in_hand]
        if not ids:
            return []
        steps = self._steps()
        self._ended.update(id for id in ids if Step.ENDED in steps.get(id, ()))
        return [Open(id, frozenset(steps.get(id, ()))) for id in ids if id not in self._ended]

    def read(self, id: str) -> RequestRecord | None:
        """A request; None: it is gone. CorruptionError: damaged. RestoreError: a newer Holdfast wrote it.

        A leader reads a request after it has claimed it. One that a newer leader has answered and swept is
        gone by then, though the name of its claim was free.
        """
        try:
            return _read_request(self.storage, id)
        except ObjectMissing:
            return None

    def claimed_by(self, id: str) -> AnswerRecord | None:
        """The claim; None where it cannot be read."""
        name = names.answers_of(id) + Step.RUNNING
        try:
            return unseal("answer", AnswerRecord, self.storage.get(name), name)
        except (CorruptionError, RestoreError):
            return None

    def is_own(self, claim: AnswerRecord | None) -> bool:
        """Whether a claim was written by this process under its term."""
        return claim is not None and (claim.term, claim.process) == (self.term, self.process)

    def accept(self, id: str, now_ms: int) -> None:
        """Say that a leader is there and will come to it."""
        _wrote(self.storage, Step.ACCEPTED, self._answer(id, State.ACCEPTED, now_ms))

    def claim(self, id: str, now_ms: int) -> RequestRecord | None:
        """Take the request on. None: another leader has, or it is gone; then do nothing about it.

        CorruptionError or RestoreError: it is ours, but cannot be read; end it.
        """
        name = names.answers_of(id) + Step.RUNNING
        data = seal("answer", self._answer(id, State.RUNNING, now_ms))
        found = write_once(self.storage, name, data)
        # Not the same bytes: an earlier try of ours may have arrived after all.
        if found != data and not self.is_own(self.claimed_by(id)):
            return None
        return self.read(id)

    def end(
        self, id: str, state: State, now_ms: int, *, result: dict[str, Json] | None = None, error: str = ""
    ) -> None:
        """Say how it ended. An answer that is there already stands."""
        assert state.ended, f"{state} is not an end"
        _wrote(self.storage, Step.ENDED, self._answer(id, state, now_ms, result or {}, error))
        self._ended.add(id)

    def sweep(self, now_ms: int, in_hand: Collection[str]) -> int:
        """Delete old requests and their answers, and answers without a request. Returns how many objects."""
        # In this order: every answer seen here has a request, seen below unless it was deleted.
        steps = self._steps()
        ids = _ids(entry.name for entry in self.storage.list(names.REQUESTS))
        doomed = set(outdated(ids, now_ms)).difference(in_hand)
        orphans = steps.keys() - set(ids) - set(in_hand)
        self.storage.delete([names.request(id) for id in sorted(doomed)])
        gone = sorted(doomed | orphans)
        answers = [names.answers_of(id) + step for id in gone for step in steps.get(id, ())]
        self.storage.delete(answers)
        return len(doomed) + len(answers)

    def _steps(self) -> dict[str, set[str]]:
        steps: dict[str, set[str]] = {}
        for entry in self.storage.list(names.ANSWERS):
            id, _, step = entry.name.removeprefix(names.ANSWERS).partition("/")
            if _ID.fullmatch(id):
                steps.setdefault(id, set()).add(step)
        return steps

    def _answer(
        self, id: str, state: State, now_ms: int, result: dict[str, Json] | None = None, error: str = ""
    ) -> AnswerRecord:
        return AnswerRecord(
            request=id, state=state, term=self.term, at_ms=now_ms, result=result or {}, error=error,
            process=self.process,
        )  # fmt: skip


def outdated(ids: Iterable[str], now_ms: int) -> list[str]:
    """Which requests to delete: older than a day, or beyond the newest thousand. Pure.

    None that could still be claimed: a power cut may bring a deleted request back without its answers, and
    then only its age keeps it from being carried out again.
    """
    newest_first = sorted(ids, reverse=True)
    return sorted(
        id
        for rank, id in enumerate(newest_first)
        if now_ms - asked_ms(id) > (KEPT_MS if rank < KEPT_MAX else EXPIRES_MS)
    )


def asked_ms(id: str) -> int:
    """When the request of this id was made."""
    return int(id.partition("-")[0])


def _ids(object_names: Iterable[str]) -> list[str]:
    found = (name.removeprefix(names.REQUESTS) for name in object_names)
    return sorted(id for id in found if _ID.fullmatch(id))


def _newest_answer(storage: Storage, id: str) -> AnswerRecord | None:
    known = {names.answers_of(id) + step for step in Step}
    found = [entry.name for entry in storage.list(names.answers_of(id)) if entry.name in known]
    return unseal("answer", AnswerRecord, storage.get(found[-1]), found[-1]) if found else None


def _request_or_damaged(storage: Storage, id: str, answer: AnswerRecord | None) -> RequestRecord | None:
    try:
        return _read_request(storage, id)
    except CorruptionError:
        # A leader finds that too, and its answer says so; without one this is all there is to say.
        if answer is None:
            raise
        return None


def _read_request(storage: Storage, id: str) -> RequestRecord:
    name = names.request(id)
    record = unseal("request", RequestRecord, storage.get(name), name)
    if record.id != id:
        raise CorruptionError(f"{name} holds request {record.id}; ask again")
    return record


def _wrote(storage: Storage, step: Step, answer: AnswerRecord) -> bool:
    """Whether this very answer is the one in storage now."""
    data = seal("answer", answer)
    return write_once(storage, names.answers_of(answer.request) + step, data) == data
