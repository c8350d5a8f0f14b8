"""How runs ended, written down for those who look at a job that nobody leads.

Always true: `ended/T` is written once, by the leader of term T, which writes nothing of the job after it. So
where the newest term has one, nobody leads. Where it has none, somebody may, however long it was silent: a
run that was killed leaves none.
Losing a record loses history, never data.
"""

from __future__ import annotations

from holdfast.checkpoint.chain.terms import newest_term
from holdfast.checkpoint.store import names
from holdfast.checkpoint.store.envelope import seal, unseal
from holdfast.checkpoint.store.records import EndedRecord
from holdfast.checkpoint.store.write_once import write_once
from holdfast.errors import CorruptionError, ObjectMissing
from holdfast.storage.contract import Storage


def record_ending(storage: Storage, record: EndedRecord) -> None:
    """Write down that a run has ended, and forget the ends of earlier terms."""
    write_once(storage, names.ended(record.term), seal("ended", record))
    found = ((entry.name, names.number_of(entry.name)) for entry in storage.list(names.ENDED))
    storage.delete([name for name, term in found if term is not None and term < record.term])


def ending_of(storage: Storage, term: int) -> EndedRecord | None:
    """How the run of this term ended; None: it leads, was killed, or could not say it."""
    name = names.ended(term)
    try:
        return unseal("ended", EndedRecord, storage.get(name), name)
    except (ObjectMissing, CorruptionError):
        return None


def newest_ending(storage: Storage) -> EndedRecord | None:
    """How the newest leader ended: then nobody leads. None: somebody may lead, or never has."""
    leader = newest_term(storage)
    return ending_of(storage, leader.term) if leader is not None else None
