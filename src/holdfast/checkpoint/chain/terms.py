"""The terms of leaders in storage: how one is claimed, and how it ended.

Always true: a claimed term is higher than every term that was visible when the claim was made; the newest
term record is never deleted. `ended/T` is written once, by the leader of term T, which writes nothing of the
job after it: where the newest term has one, no leader runs. Where it has none, one may, however long it was
silent: a run that was killed leaves none.
A term only orders leaders. Safety rests on the commit chain, not on who holds a term.
"""

from __future__ import annotations

from contextlib import suppress

from holdfast.checkpoint.store import names
from holdfast.checkpoint.store.envelope import seal, unseal
from holdfast.checkpoint.store.records import EndedRecord, TermRecord
from holdfast.checkpoint.store.write_once import write_once
from holdfast.errors import CorruptionError, FencedOut, ObjectMissing, RetryableError
from holdfast.ids import Term
from holdfast.storage.contract import Storage

CLAIMS_MAX = 100
TERMS_KEPT = 2
"""Old terms beyond these are cleaned. Two, so that a listing that races with a claim never shows none."""


def claim(storage: Storage, run: str, host: str, pid: int, now_ms: int, *, above: int = 0) -> Term:
    """Claim the next term for `run`. The leader before loses its lead at its next commit. `above`: the term
    of a commit; records of terms may have been lost since."""
    for _ in range(CLAIMS_MAX):
        number = max(names.highest(storage, names.TERMS), above) + 1
        record = TermRecord(term=number, run=run, host=host, pid=pid, claimed_ms=now_ms)
        if claim_record(storage, record):
            return Term(number)
    raise RetryableError(
        f"no term could be claimed in {CLAIMS_MAX} tries, the last was {number}: "
        "too many drivers start at once; stop all but one"
    )


def claim_after(storage: Storage, newest: int, run: str, host: str, pid: int, now_ms: int) -> Term | None:
    """Claim the term after `newest` for `run`. None: another claim came first, and none is made."""
    record = TermRecord(term=newest + 1, run=run, host=host, pid=pid, claimed_ms=now_ms)
    free = names.highest(storage, names.TERMS) == newest
    return Term(record.term) if free and claim_record(storage, record) else None


def claim_record(storage: Storage, record: TermRecord) -> bool:
    """Claim the term that a record names. False: another claim came first, or a newer one since."""
    data = seal("term", record)
    ours = write_once(storage, names.term(record.term), data) == data
    # A newer term may have come and this name been cleaned while we were paused: then the claim is stale.
    return ours and names.highest(storage, names.TERMS) == record.term


def newest_term(storage: Storage) -> TermRecord | None:
    """Who claimed last; None: no term was ever claimed."""
    number = names.highest(storage, names.TERMS)
    if number == 0:
        return None
    name = names.term(number)
    return unseal("term", TermRecord, storage.get(name), name)


def first_claimed_after(storage: Storage, term: int) -> int | None:
    """When the first term after this one was claimed, in ms since 1970, of those whose records are there.
    None: there is none."""
    later = sorted(n for entry in storage.list(names.TERMS) if (n := names.number_of(entry.name) or 0) > term)
    for number in later[:1]:
        with suppress(CorruptionError, ObjectMissing):
            name = names.term(number)
            return unseal("term", TermRecord, storage.get(name), name).claimed_ms
    return None


def is_superseded(storage: Storage, term: int) -> bool:
    """Whether a newer term than this one was claimed; from names alone."""
    return names.highest(storage, names.TERMS) > term


def refuse_if_superseded(storage: Storage, term: int) -> None:
    """FencedOut: a newer term than this one was claimed, also where it cannot be read by whom."""
    newest = names.highest(storage, names.TERMS)
    if newest <= term:
        return
    name, by = names.term(newest), f"{names.term(newest)} is its"
    with suppress(CorruptionError, ObjectMissing):
        record = unseal("term", TermRecord, storage.get(name), name)
        by = f"claimed by {record.host}, process {record.pid}"
    raise FencedOut(term, newest, by)


def outdated_terms(storage: Storage) -> list[str]:
    """Names of term records that may be deleted; never the newest."""
    return names.all_but_newest(storage, names.TERMS, TERMS_KEPT)


def record_ending(storage: Storage, record: EndedRecord) -> None:
    """Write down that a run has ended, and forget the ends of earlier terms."""
    write_once(storage, names.ended(record.term), seal("ended", record))
    found = ((entry.name, names.number_of(entry.name)) for entry in storage.list(names.ENDED))
    storage.delete([name for name, term in found if term is not None and term < record.term])


def ending_of(storage: Storage, term: int) -> EndedRecord | None:
    """How the run of this term ended; None: it leads, was killed, or could not write it down."""
    name = names.ended(term)
    try:
        return unseal("ended", EndedRecord, storage.get(name), name)
    except (ObjectMissing, CorruptionError):
        return None


def newest_ending(storage: Storage) -> EndedRecord | None:
    """How the newest leader ended: then none runs. None: one may run, or there never was one."""
    newest = names.highest(storage, names.TERMS)
    return ending_of(storage, newest) if newest else None
