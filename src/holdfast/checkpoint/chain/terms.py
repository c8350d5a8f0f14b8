"""Claiming the leader's seat in storage.

Always true: a claimed term is higher than every term that was visible when the claim was made; the newest
term record is never deleted. A term only orders leaders. Safety rests on the commit chain, not on who
holds a term.
"""

from __future__ import annotations

from holdfast.checkpoint.store import names
from holdfast.checkpoint.store.envelope import seal, unseal
from holdfast.checkpoint.store.records import TermRecord
from holdfast.checkpoint.store.write_once import write_once
from holdfast.errors import RetryableError
from holdfast.ids import Term
from holdfast.storage.contract import Storage

CLAIMS_MAX = 100
TERMS_KEPT = 2
"""Old terms beyond these are cleaned. Two, so that a listing that races with a claim never shows none."""


def claim(storage: Storage, run: str, host: str, pid: int, now_ms: int) -> Term:
    """Claim the next term for `run`. Whoever held the seat before loses it at their next commit."""
    for _ in range(CLAIMS_MAX):
        number = _newest_number(storage) + 1
        record = TermRecord(term=number, run=run, host=host, pid=pid, claimed_ms=now_ms)
        data = seal("term", record)
        # A newer term may have come and this name been cleaned while we were paused: then the claim is stale.
        if write_once(storage, names.term(number), data) == data and _newest_number(storage) == number:
            return Term(number)
    raise RetryableError(
        f"no term could be claimed in {CLAIMS_MAX} tries, the last was {number}: "
        "too many drivers start at once; stop all but one"
    )


def claim_after(storage: Storage, newest: int, run: str, host: str, pid: int, now_ms: int) -> Term | None:
    """Claim the term after `newest` for `run`. None: another claim came first, and none is made."""
    data = seal("term", TermRecord(term=newest + 1, run=run, host=host, pid=pid, claimed_ms=now_ms))
    if _newest_number(storage) != newest or write_once(storage, names.term(newest + 1), data) != data:
        return None
    return Term(newest + 1) if _newest_number(storage) == newest + 1 else None


def newest_term(storage: Storage) -> TermRecord | None:
    """Who claimed last, or None when nobody ever did."""
    number = _newest_number(storage)
    if number == 0:
        return None
    name = names.term(number)
    return unseal("term", TermRecord, storage.get(name), name)


def outdated_terms(storage: Storage) -> list[str]:
    """Names of term records that may be deleted; never the newest."""
    return [entry.name for entry in storage.list(names.TERMS)][:-TERMS_KEPT]


def _newest_number(storage: Storage) -> int:
    return max((names.number_of(entry.name) or 0 for entry in storage.list(names.TERMS)), default=0)
