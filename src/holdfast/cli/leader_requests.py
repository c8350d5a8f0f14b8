"""Asking the leader of one checkpoint for something, waiting for the answer, and telling it.

Always true: a request that no leader takes is taken back before the command ends; one that was not done is an
error.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
from rich.console import Console

from holdfast.admin.status import asked_plainly
from holdfast.checkpoint.chain.replica_sets import left_by_all
from holdfast.checkpoint.chain.terms import ending_of, newest_term
from holdfast.checkpoint.log.requests import NOBODY, Asked, State
from holdfast.cli.format import age, answer, ending
from holdfast.clock import SystemClock, duration_ms
from holdfast.errors import DefinitionError, HoldfastError, RetryableError
from holdfast.runtime.control.request_client import TAKEN_SECONDS, ask_leader, asker, wait_for_end
from holdfast.storage.contract import Storage


def ask(storage: Storage, verb: str, arguments: dict[str, Any]) -> str:
    """Leave a request; gives its id."""
    return ask_leader(storage, verb, arguments, SystemClock(), by=asker(f"holdfast {verb}")).id


def await_end(
    storage: Storage, checkpoint: str, id: str, verb: str, timeout: str, *, as_json: bool, part: str = ""
) -> None:
    """Wait for the end of a request and tell it."""
    clock, seconds = SystemClock(), duration_ms(timeout) / 1_000
    try:
        with _progress_line(verb, clock) as tell:
            taken_within = min(TAKEN_SECONDS, seconds)
            asked = wait_for_end(
                storage, id, clock, taken_within=taken_within, ended_within=seconds, tell=tell
            )
    except KeyboardInterrupt:
        print(f"holdfast: {_how_to_follow(id, checkpoint)}", file=sys.stderr)
        raise
    if not asked.state.ended:
        raise RetryableError(
            f"{verb} is still {asked.state} after {timeout}; {_how_to_follow(id, checkpoint)}"
        )
    tell_end(storage, asked, as_json=as_json, part=part)


def tell_end(storage: Storage, asked: Asked, *, as_json: bool, part: str = "") -> None:
    """Print how a request ended; one that was not done is an error."""
    assert asked.answer is not None
    if asked.state is State.DONE or as_json:
        tell_state(asked, as_json=as_json, part=part)
    verb, error = asked.request.verb if asked.request else "it", asked.answer.error
    if asked.answer.term == NOBODY:
        raise RetryableError(f"{verb} was not done: {error}; {last_leader(storage)}")
    if asked.state is State.REFUSED:
        raise DefinitionError(f"{verb} was refused: {error}")
    if asked.state is State.FAILED:
        raise HoldfastError(f"{verb} failed: {error}")


def tell_state(asked: Asked, *, as_json: bool, part: str = "") -> None:
    """Print how a request stands."""
    told = {**({"part": part} if part else {}), **asked_plainly(asked)}
    arguments, result = told.get("arguments", {}), told.get("result", {})
    facts = [f"{name} {result[name]}" for name in ("id", "commit", "epoch") if name in result]
    if place := arguments.get("url") or arguments.get("savepoint"):
        facts.append(f"at {place}")
    more = f" ({', '.join(facts)})" if facts else ""
    if waiting := result.get("waiting"):
        more += f"; {waiting}"
    whose = f"{part}: " if part else ""
    answer(as_json, told, f"{whose}{told.get('verb', 'request')}: {asked.state}{more}")


@contextmanager
def _progress_line(verb: str, clock: SystemClock) -> Iterator[Callable[[Asked], None]]:
    """Something to look at while waiting: a line that changes on a terminal, a line per state in a log."""
    console, began = Console(stderr=True), clock.monotonic()
    with console.status(f"{verb}: asking the leader") as line:
        shown = State.WAITING

        def tell(asked: Asked) -> None:
            nonlocal shown
            who = f" by the leader of term {asked.answer.term}" if asked.answer and asked.answer.term else ""
            line.update(f"{verb}: {asked.state}{who}, {clock.monotonic() - began:.0f} s")
            if asked.state is not shown and not asked.state.ended and not console.is_terminal:
                print(f"holdfast: {verb}: {asked.state}{who}", file=sys.stderr)
            shown = asked.state

        yield tell


def last_leader(storage: Storage) -> str:
    """Who led last, in words, and how that ended."""
    leader = newest_term(storage)
    if leader is None:
        return "nobody ever led this job; start it"
    ended = ending_of(storage, leader.term)
    if ended is not None:
        return f"the job does not run, it {ending(msgspec.to_builtins(ended))}: start it to ask it something"
    now_ms = SystemClock().now_ms()
    if (left_ms := left_by_all(storage, leader)) is not None:
        return f"the job does not run, its members have left {age(left_ms, now_ms)} ago: start it first"
    ago = age(leader.claimed_ms, now_ms)
    who = f"term {leader.term}, {leader.host}, process {leader.pid}, since {ago}"
    return f"the last leader was {who}: see whether it runs"


def _how_to_follow(id: str, checkpoint: str) -> str:
    return f"the request goes on: follow it with `holdfast request {id} --checkpoint {checkpoint}`"
