"""Talking to a running job through its checkpoint storage: `holdfast stop | savepoint | rescale | request`.

Always true: nothing is written into a place that holds no checkpoint, and no request that makes no sense; a
request that no leader takes is taken back before the command ends.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console

from holdfast.admin.status import asked_plainly
from holdfast.checkpoint.chain.terms import ending_of, newest_ending, newest_term
from holdfast.checkpoint.log.requests import NOBODY, Asked, State, read_asked
from holdfast.cli.format import age, answer, ending
from holdfast.cli.options import AsJson, Checkpoint, Verbose, one_line_errors, open_checkpoint
from holdfast.clock import SystemClock, duration_ms
from holdfast.errors import DefinitionError, HoldfastError, RetryableError
from holdfast.runtime.control.request_client import TAKEN_SECONDS, ask_leader, asker, wait_for_end
from holdfast.storage.contract import Storage

Timeout = Annotated[str, typer.Option(help="How long to wait for the end, such as 30s or 10m.")]
NoWait = Annotated[bool, typer.Option("--no-wait", help="Print the id of the request and do not wait.")]


def stop(
    checkpoint: Checkpoint,
    savepoint: Annotated[str | None, typer.Option(help="Take a savepoint there at the end.")] = None,
    drain: Annotated[bool, typer.Option("--drain", help="First read what the sources have now.")] = False,
    timeout: Timeout = "10m",
    no_wait: NoWait = False,
    json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """End a running job in good order: what it has read is committed and published."""
    with one_line_errors(verbose):
        arguments = {"savepoint": _for_the_leader(savepoint), "drain": drain}
        _ask(checkpoint, "stop", arguments, timeout, wait=not no_wait, as_json=json)


def savepoint(
    url: Annotated[str, typer.Argument(help="An empty place: a directory, s3://, gs://, az://.")],
    checkpoint: Checkpoint,
    format: Annotated[str, typer.Option(help="native, or canonical: larger work, any backend.")] = "native",
    timeout: Timeout = "10m",
    no_wait: NoWait = False,
    json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Have a running job take a savepoint; it goes on meanwhile."""
    with one_line_errors(verbose):
        arguments = {"url": _for_the_leader(url), "format": format}
        _ask(checkpoint, "savepoint", arguments, timeout, wait=not no_wait, as_json=json)


def rescale(
    checkpoint: Checkpoint,
    parallelism: Annotated[int, typer.Option(help="How many shards from the next epoch on.")],
    timeout: Timeout = "1m",
    no_wait: NoWait = False,
    json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Have a running job go on with another number of shards."""
    with one_line_errors(verbose):
        _ask(checkpoint, "rescale", {"parallelism": parallelism}, timeout, wait=not no_wait, as_json=json)


def request(
    id: Annotated[str, typer.Argument(help="What --no-wait printed, or POST answered.")],
    checkpoint: Checkpoint,
    json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Say what became of a request."""
    with one_line_errors(verbose):
        storage, _ = open_checkpoint(checkpoint)
        asked = read_asked(storage, id)
        if asked.state.ended:
            _tell_end(storage, asked, as_json=json)
        else:
            _print(asked, as_json=json)


def _ask(
    checkpoint: str, verb: str, arguments: dict[str, Any], timeout: str, *, wait: bool, as_json: bool
) -> None:
    clock, seconds = SystemClock(), duration_ms(timeout) / 1_000
    storage, _ = open_checkpoint(checkpoint)
    if newest_ending(storage) is not None:
        raise RetryableError(f"{verb} was not asked: {_last_leader(storage)}")
    id = ask_leader(storage, verb, arguments, clock, by=asker(f"holdfast {verb}")).id
    if not wait:
        answer(as_json, {"request": id}, id)
        return
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
    _tell_end(storage, asked, as_json=as_json)


def _tell_end(storage: Storage, asked: Asked, *, as_json: bool) -> None:
    """Print how a request ended; one that was not done is an error."""
    assert asked.answer is not None
    if asked.state is State.DONE or as_json:
        _print(asked, as_json=as_json)
    verb, error = asked.request.verb if asked.request else "it", asked.answer.error
    if asked.answer.term == NOBODY:
        raise RetryableError(f"{verb} was not done: {error}; {_last_leader(storage)}")
    if asked.state is State.REFUSED:
        raise DefinitionError(f"{verb} was refused: {error}")
    if asked.state is State.FAILED:
        raise HoldfastError(f"{verb} failed: {error}")


def _print(asked: Asked, *, as_json: bool) -> None:
    told = asked_plainly(asked)
    arguments, result = told.get("arguments", {}), told.get("result", {})
    facts = [f"{name} {result[name]}" for name in ("id", "commit", "epoch") if name in result]
    if place := arguments.get("url") or arguments.get("savepoint"):
        facts.append(f"at {place}")
    more = f" ({', '.join(facts)})" if facts else ""
    answer(as_json, told, f"{told.get('verb', 'request')}: {asked.state}{more}")


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


def _last_leader(storage: Storage) -> str:
    leader = newest_term(storage)
    if leader is None:
        return "nobody ever led this job; start it"
    ended = ending_of(storage, leader.term)
    if ended is not None:
        return f"the job does not run, it {ending(msgspec.to_builtins(ended))}: start it to ask it something"
    ago = age(leader.claimed_ms, SystemClock().now_ms())
    who = f"term {leader.term}, {leader.host}, process {leader.pid}, since {ago}"
    return f"the last leader was {who}: see whether it runs"


def _how_to_follow(id: str, checkpoint: str) -> str:
    return f"the request goes on: follow it with `holdfast request {id} --checkpoint {checkpoint}`"


def _for_the_leader(url: str | None) -> str | None:
    """A url as the leader understands it: it has another current directory."""
    return url if url is None or "://" in url else os.path.abspath(os.path.expanduser(url))
