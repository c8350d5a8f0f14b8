"""Talking to a running job through its checkpoint storage: `holdfast stop | savepoint | rescale | request`.

A job in parts is told to stop, or to go on with other shards, by telling every part that runs.
Always true: nothing is written into a place that holds no checkpoint, and no request that makes no sense; a
request that no leader takes is taken back before the command ends.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console

from holdfast.admin.parts import StoredPart, stored_parts
from holdfast.admin.status import asked_plainly
from holdfast.checkpoint.chain.checkpoint import find_job, read_layout
from holdfast.checkpoint.chain.history import History
from holdfast.checkpoint.chain.terms import ending_of, newest_ending, newest_term
from holdfast.checkpoint.log.requests import NOBODY, Asked, State, read_asked
from holdfast.cli.format import age, answer, ending
from holdfast.cli.options import AsJson, Checkpoint, Verbose, one_line_errors, open_checkpoint
from holdfast.clock import SystemClock, duration_ms
from holdfast.errors import DefinitionError, HoldfastError, RetryableError
from holdfast.runtime.control.request_client import TAKEN_SECONDS, ask_leader, asker, wait_for_end
from holdfast.runtime.parts.job_savepoint import ALIGN_SECONDS, take_job_savepoint
from holdfast.storage.contract import Storage
from holdfast.storage.urls import open_storage

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
    """Have a running job take a savepoint; it goes on meanwhile. Of a job in parts: of all of them, at one
    barrier."""
    with one_line_errors(verbose):
        root = open_storage(checkpoint)
        if (layout := read_layout(root)) is not None:
            parts = stored_parts(root, layout)
            _savepoint_of_parts(parts, root, url, format, timeout, wait=not no_wait, as_json=json)
            return
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
    duration_ms(timeout)
    root = open_storage(checkpoint)
    if verb in ("stop", "rescale") and (layout := read_layout(root)) is not None:
        if arguments.get("savepoint") is not None:
            raise DefinitionError(
                "a job in parts leaves no savepoint when this command stops it; take one with `holdfast "
                "savepoint` and stop the job then"
            )
        _ask_parts(stored_parts(root, layout), verb, arguments, timeout, wait=wait, as_json=as_json)
        return
    storage, _ = open_checkpoint(checkpoint)
    if newest_ending(storage) is not None:
        raise RetryableError(f"{verb} was not asked: {_last_leader(storage)}")
    id = _asked_id(storage, verb, arguments)
    if not wait:
        answer(as_json, {"request": id}, id)
        return
    _await(storage, checkpoint, id, verb, timeout, as_json=as_json)


def _savepoint_of_parts(
    parts: list[StoredPart], root: Storage, url: str, format: str, timeout: str, *, wait: bool, as_json: bool
) -> None:
    if format != "native" or not wait:
        raise DefinitionError(
            "the savepoint of a job in parts is native, and this command waits for it; leave out --format "
            "and --no-wait"
        )
    still = [part.name for part in parts if not (_may_run(part.storage) or _has_read_all(part.storage))]
    if still:
        raise RetryableError(
            f"savepoint was not asked: part {still[0]!r} does not run, and a barrier goes through all parts; "
            "start the job"
        )
    clock, seconds = SystemClock(), min(ALIGN_SECONDS, duration_ms(timeout) / 1_000)
    target = _for_the_leader(url) or ""
    taken = take_job_savepoint(root.url, target, clock, asker("holdfast savepoint"), seconds)
    commits = ", ".join(f"{part} {commit}" for part, commit in taken.commits.items())
    told = f"savepoint: done (barrier {taken.barrier}, commits {commits}, at {taken.url})"
    answer(as_json, asdict(taken), told)


def _has_read_all(storage: Storage) -> bool:
    return find_job(storage) is not None and History(storage).load().ended


def _ask_parts(
    parts: list[StoredPart], verb: str, arguments: dict[str, Any], timeout: str, *, wait: bool, as_json: bool
) -> None:
    """Ask every part that runs, at once. To drain: each after those that it reads from have ended, because
    only then is everything at hand that it is to read."""
    drain = arguments.get("drain", False)
    if drain and not wait:
        raise DefinitionError(
            "a job in parts is drained part after part, and this command has to wait for each; leave out "
            "--no-wait"
        )
    running = [part for part in parts if _may_run(part.storage)]
    if not running:
        names = ", ".join(part.name for part in parts)
        raise RetryableError(f"{verb} was not asked: none of the parts {names} runs; start the job")
    turns = [[part] for part in running] if drain else [running]
    while turns:
        failures = _one_turn(turns.pop(0), verb, arguments, timeout, wait=wait, as_json=as_json)
        if failures:
            left = ", ".join(part.name for turn in turns for part in turn)
            more = f"\nnot asked, and still running: {left}; see to that part, then ask again" if left else ""
            told = "\n".join(f"part {name!r}: {failure}" for name, failure in failures.items())
            raise type(next(iter(failures.values())))(f"{told}{more}")


def _one_turn(
    parts: list[StoredPart], verb: str, arguments: dict[str, Any], timeout: str, *, wait: bool, as_json: bool
) -> dict[str, HoldfastError]:
    """Ask these parts and wait for all; gives what went wrong, by part."""
    ids = {part: _asked_id(part.storage, verb, arguments) for part in parts}
    failures: dict[str, HoldfastError] = {}
    for part, id in ids.items():
        if not wait:
            answer(as_json, {"part": part.name, "request": id}, f"{part.name}: {id}")
            continue
        try:
            _await(part.storage, part.url, id, verb, timeout, as_json=as_json, part=part.name)
        except HoldfastError as failure:
            failures[part.name] = failure
    return failures


def _may_run(storage: Storage) -> bool:
    return find_job(storage) is not None and newest_ending(storage) is None


def _asked_id(storage: Storage, verb: str, arguments: dict[str, Any]) -> str:
    return ask_leader(storage, verb, arguments, SystemClock(), by=asker(f"holdfast {verb}")).id


def _await(
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
    _tell_end(storage, asked, as_json=as_json, part=part)


def _tell_end(storage: Storage, asked: Asked, *, as_json: bool, part: str = "") -> None:
    """Print how a request ended; one that was not done is an error."""
    assert asked.answer is not None
    if asked.state is State.DONE or as_json:
        _print(asked, as_json=as_json, part=part)
    verb, error = asked.request.verb if asked.request else "it", asked.answer.error
    if asked.answer.term == NOBODY:
        raise RetryableError(f"{verb} was not done: {error}; {_last_leader(storage)}")
    if asked.state is State.REFUSED:
        raise DefinitionError(f"{verb} was refused: {error}")
    if asked.state is State.FAILED:
        raise HoldfastError(f"{verb} failed: {error}")


def _print(asked: Asked, *, as_json: bool, part: str = "") -> None:
    told = {**({"part": part} if part else {}), **asked_plainly(asked)}
    arguments, result = told.get("arguments", {}), told.get("result", {})
    facts = [f"{name} {result[name]}" for name in ("id", "commit", "epoch") if name in result]
    if place := arguments.get("url") or arguments.get("savepoint"):
        facts.append(f"at {place}")
    more = f" ({', '.join(facts)})" if facts else ""
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
