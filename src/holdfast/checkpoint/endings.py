"""That a run ended in good order, written down for those who look at a job that nobody leads.

Always true: `ended/T` is written once, by the leader of term T, after its last commit and its last publishing
of that run; it writes nothing of the job after it. So where the newest term has one, nobody leads. Where it
has none, somebody may: a run that failed or was killed leaves none.
Losing a record loses history, never data.
"""

from __future__ import annotations

from holdfast.checkpoint import names
from holdfast.checkpoint.envelope import seal, unseal
from holdfast.checkpoint.once import write_once
from holdfast.checkpoint.records import Record
from holdfast.checkpoint.terms import newest_term
from holdfast.errors import CorruptionError, ObjectMissing
from holdfast.storage.contract import Storage


class EndedRecord(Record, frozen=True, kw_only=True):
    """`ended/T`: the leader of term T ended in good order.

    `ending`: `stopped` (it was told to) or `exhausted` (the sources had no more). `commit` and `last_epoch`
    are the newest then; `published`: whether every sink shows all epochs up to it.
    """

    term: int
    run: str
    at_ms: int
    ending: str
    commit: int
    last_epoch: int
    published: bool


def record_ending(storage: Storage, record: EndedRecord) -> None:
    """Write down that a run has ended, and forget the ends of earlier terms."""
    write_once(storage, names.ended(record.term), seal("ended", record))
    found = ((entry.name, names.number_of(entry.name)) for entry in storage.list(names.ENDED))
    storage.delete([name for name, term in found if term is not None and term < record.term])


def ending_of(storage: Storage, term: int) -> EndedRecord | None:
    """How the run of this term ended; None: it did not end in good order, or not yet, or nothing is known."""
    name = names.ended(term)
    try:
        return unseal("ended", EndedRecord, storage.get(name), name)
    except (ObjectMissing, CorruptionError):
        return None


def newest_ending(storage: Storage) -> EndedRecord | None:
    """How the newest leader ended: then nobody leads. None: somebody may lead, or never has."""
    leader = newest_term(storage)
    return ending_of(storage, leader.term) if leader is not None else None
