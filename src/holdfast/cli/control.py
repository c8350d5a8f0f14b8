"""Talking to a running job through its checkpoint storage: `holdfast stop | savepoint | rescale | request`.

A job in parts is told to stop, or to go on with other shards, by telling every part that runs.
Always true: nothing is written into a place that holds no checkpoint, and no request that makes no sense; a
request that no leader takes is taken back before the command ends.
"""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer

from holdfast.admin.parts import stored_parts
from holdfast.checkpoint.chain.checkpoint import read_layout
from holdfast.checkpoint.chain.replica_sets import runs_no_more
from holdfast.checkpoint.log.requests import read_asked
from holdfast.cli.format import answer
from holdfast.cli.leader_requests import ask, await_end, last_leader, tell_end, tell_state
from holdfast.cli.options import AsJson, Checkpoint, Verbose, one_line_errors, open_checkpoint
from holdfast.cli.parts_requests import ask_parts, savepoint_of_parts, stop_parts_with_savepoint
from holdfast.clock import duration_ms
from holdfast.errors import RetryableError
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
    """End a running job in good order: what it has read is committed and published. A sink that does not
    show it in the time that the run was given (`holdfast run --stop-within`) is named, and the next start
    shows the rest there."""
    with one_line_errors(verbose):
        root, place = open_storage(checkpoint), None if savepoint is None else _for_the_leader(savepoint)
        if place is not None and (layout := read_layout(root)) is not None:
            parts = stored_parts(root, layout)
            stop_parts_with_savepoint(
                parts, root, place, timeout, drain=drain, wait=not no_wait, as_json=json
            )
            return
        arguments = {"savepoint": place, "drain": drain}
        ask_and_tell(checkpoint, "stop", arguments, timeout, wait=not no_wait, as_json=json)


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
        root, place = open_storage(checkpoint), _for_the_leader(url)
        if (layout := read_layout(root)) is not None:
            parts = stored_parts(root, layout)
            savepoint_of_parts(parts, root, place, format, timeout, wait=not no_wait, as_json=json)
            return
        arguments = {"url": place, "format": format}
        ask_and_tell(checkpoint, "savepoint", arguments, timeout, wait=not no_wait, as_json=json)


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
        ask_and_tell(
            checkpoint, "rescale", {"parallelism": parallelism}, timeout, wait=not no_wait, as_json=json
        )


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
            tell_end(storage, asked, as_json=json)
        else:
            tell_state(asked, as_json=json)


def ask_and_tell(
    checkpoint: str, verb: str, arguments: dict[str, Any], timeout: str, *, wait: bool, as_json: bool
) -> None:
    """Have whoever leads do what a verb says, and tell how it ended."""
    duration_ms(timeout)
    root = open_storage(checkpoint)
    if verb in ("stop", "rescale") and (layout := read_layout(root)) is not None:
        ask_parts(stored_parts(root, layout), verb, arguments, timeout, wait=wait, as_json=as_json)
        return
    storage, _ = open_checkpoint(checkpoint)
    if runs_no_more(storage):
        raise RetryableError(f"{verb} was not asked: {last_leader(storage)}")
    id = ask(storage, verb, arguments)
    if not wait:
        answer(as_json, {"request": id}, id)
        return
    await_end(storage, checkpoint, id, verb, timeout, as_json=as_json)


def _for_the_leader(url: str) -> str:
    """A url as the leader understands it: it has another current directory."""
    return url if "://" in url else os.path.abspath(os.path.expanduser(url))
