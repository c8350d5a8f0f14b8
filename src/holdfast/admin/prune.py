"""Giving up old commits on request, beside a running job or without one.

    the leader has ended    two commits that cover no epoch: the first gives up all but the newest `keep`, the
                            second lets their files be deleted (see retention)
    the leader answers      only what it has given up itself is deleted: how much to keep is for it to say

Always true: every deletion is retention's own, from a committed view, so it is one that the leader itself
would make; a snapshot that the leader may be about to commit is left alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from msgspec.structs import replace

from holdfast.admin.brief_term import brief_term, look_for_leader
from holdfast.checkpoint.chain.commits import Adopted, Chain
from holdfast.checkpoint.chain.low_water import keep_for
from holdfast.checkpoint.chain.pins import read_pins, unpin
from holdfast.checkpoint.chain.retention import Retention
from holdfast.checkpoint.chain.view import CheckpointView, news
from holdfast.checkpoint.store.records import PinRecord
from holdfast.clock import Clock
from holdfast.errors import DefinitionError, RetryableError
from holdfast.storage.contract import Storage

KEEP_MIN = 2
"""As for a run: what there is to go back to when the newest turns out damaged."""

GIVING_UP = 2
"""Commits that it takes: one says what is given up, and what a later one finds given up may be deleted."""


@dataclass(frozen=True)
class Pruned:
    """What was done, or would be. `led`: a leader runs; `held_back`: why nothing was deleted."""

    led: bool
    retained_from: int
    newest: int
    given_up: tuple[int, ...]
    pins_dropped: tuple[str, ...]
    deleted: int
    held_back: str = ""


def prune(
    storage: Storage,
    keep: int,
    clock: Clock,
    *,
    pins_older_than_ms: int | None = None,
    dry_run: bool = False,
    not_running: bool = False,
) -> Pruned:
    """Give up all but the newest `keep` commits, if no leader runs, and delete what is given up.

    Pins whose time is over are removed; with `pins_older_than_ms` also all those that are older than that.
    RetryableError: the leader neither answers nor said that it ended; nothing was touched. `not_running`: the
    caller knows that it is gone.
    """
    if keep < KEEP_MIN:
        raise DefinitionError(
            f"keep={keep} keeps too little to go back to; choose a number from {KEEP_MIN} on"
        )
    # The commits that give the others up come on top: they hold nothing new to go back to.
    chain = Chain(storage, retain=keep + GIVING_UP)
    view = chain.load()
    now = clock.now_ms()
    doomed = tuple(pin.name for pin in read_pins(storage).records if _over(pin, now, pins_older_than_ms))
    leader = look_for_leader(storage, clock, "prune", not_running=not_running)
    led = leader.answers
    target = view.retained_from if led else max(view.retained_from, view.number - keep + 1)
    if view.needs_from:
        target = min(target, keep_for(chain, view, target))
    given_up = tuple(number for number in chain.numbers() if view.retained_from <= number < target)
    if dry_run or not view.number:
        return Pruned(led, target, view.number, given_up, doomed, 0)
    unpin(storage, doomed)
    if not led and given_up:
        with brief_term(storage, leader.newest, clock) as (term, run):
            view = _given_up(chain, view, clock, term, run)
    swept = Retention(chain, led_by_other=led).after_commit(view)
    deleted, held_back = (swept.deleted, swept.held_back) if swept else (0, "")
    return Pruned(led, view.retained_from, view.number, given_up, doomed, deleted, held_back)


def _over(pin: PinRecord, now_ms: int, older_than_ms: int | None) -> bool:
    if 0 < pin.expires_ms <= now_ms:
        return True
    return older_than_ms is not None and pin.pinned_ms < now_ms - older_than_ms


def _given_up(chain: Chain, view: CheckpointView, clock: Clock, term: int, run: str) -> CheckpointView:
    for _ in range(GIVING_UP):
        published = view.published_through
        record = news(view, term=term, run=run, published_through=published, ended=view.ended)
        done = chain.commit(view, replace(record, clock_ms=max(view.clock_ms, clock.now_ms())))
        if isinstance(done, Adopted):
            raise RetryableError(
                f"another leader committed {done.view.number} meanwhile; prune again, nothing is lost"
            )
        view = done.view
    return view
