"""Talking to a running job in parts: every part that runs is told, each by its own checkpoint.

A savepoint of the whole job asks no leader: it begins a barrier, which every part comes to in its own time.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from holdfast.admin.parts import StoredPart
from holdfast.checkpoint.chain.checkpoint import find_job
from holdfast.checkpoint.chain.history import History
from holdfast.checkpoint.chain.replica_sets import runs_no_more
from holdfast.cli.format import answer
from holdfast.cli.leader_requests import ask, await_end
from holdfast.clock import SystemClock, duration_ms
from holdfast.errors import DefinitionError, HoldfastError, RetryableError
from holdfast.runtime.control.request_client import TAKEN_SECONDS, asker, wait_for_end
from holdfast.runtime.parts.job_savepoint import ALIGN_SECONDS, JobSavepoint, take_job_savepoint
from holdfast.storage.contract import Storage


def ask_parts(
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


def savepoint_of_parts(
    parts: list[StoredPart], root: Storage, url: str, format: str, timeout: str, *, wait: bool, as_json: bool
) -> None:
    """Take a savepoint of the whole job, while it goes on."""
    if format != "native" or not wait:
        raise DefinitionError(
            "the savepoint of a job in parts is native, and this command waits for it; leave out --format "
            "and --no-wait"
        )
    _refuse_unless_all_run("savepoint", parts)
    taken = _taken(root, url, timeout, "savepoint")
    waiting = f"; {taken.waiting}" if taken.waiting else ""
    answer(as_json, asdict(taken), f"savepoint: done ({_in_words(taken)}){waiting}")


def stop_parts_with_savepoint(
    parts: list[StoredPart], root: Storage, url: str, timeout: str, *, drain: bool, wait: bool, as_json: bool
) -> None:
    """End the whole job at the barrier that a savepoint is taken at. Where that fails, it is stopped without
    one: some parts may have ended by then."""
    if drain or not wait:
        raise DefinitionError(
            "a job in parts is drained or leaves a savepoint, and this command waits for it; leave out "
            "--drain and --no-wait"
        )
    _refuse_unless_all_run("stop", parts)
    running = [part for part in parts if _may_run(part.storage)]
    try:
        taken = _taken(root, url, timeout, "stop", lambda: _stop(running, timeout))
    except HoldfastError:
        ended = ", ".join(part.name for part in running if not _may_run(part.storage))
        if ended:
            print(f"holdfast: stopped without a savepoint: {ended}", file=sys.stderr)
        raise
    told = {"verb": "stop", "state": "done", **asdict(taken)}
    answer(as_json, told, f"stop: done ({_in_words(taken)})")


def _refuse_unless_all_run(verb: str, parts: list[StoredPart]) -> None:
    still = [part.name for part in parts if not (_may_run(part.storage) or _has_read_all(part.storage))]
    if still:
        raise RetryableError(
            f"{verb} was not asked: part {still[0]!r} does not run, and a barrier goes through all parts; "
            "start the job"
        )


def _taken(
    root: Storage, url: str, timeout: str, verb: str, stop_rest: Callable[[], None] | None = None
) -> JobSavepoint:
    clock, seconds = SystemClock(), min(ALIGN_SECONDS, duration_ms(timeout) / 1_000)
    return take_job_savepoint(root.url, url, clock, asker(f"holdfast {verb}"), seconds, stop_rest, _say)


def _say(text: str) -> None:
    print(f"holdfast: {text}", file=sys.stderr)


def _in_words(taken: JobSavepoint) -> str:
    commits = ", ".join(f"{part} {commit}" for part, commit in taken.commits.items())
    return f"barrier {taken.barrier}, commits {commits}, at {taken.url}"


def _stop(parts: list[StoredPart], timeout: str) -> None:
    """Stop those of these parts that still run; waits for their ends as long as that may take."""
    clock, seconds = SystemClock(), duration_ms(timeout) / 1_000
    ids = {part: ask(part.storage, "stop", {}) for part in parts if _may_run(part.storage)}
    for part, id in ids.items():
        taken_within = min(TAKEN_SECONDS, seconds)
        wait_for_end(part.storage, id, clock, taken_within=taken_within, ended_within=seconds)


def _has_read_all(storage: Storage) -> bool:
    return find_job(storage) is not None and History(storage).load().ended


def _may_run(storage: Storage) -> bool:
    return find_job(storage) is not None and not runs_no_more(storage)


def _one_turn(
    parts: list[StoredPart], verb: str, arguments: dict[str, Any], timeout: str, *, wait: bool, as_json: bool
) -> dict[str, HoldfastError]:
    """Ask these parts and wait for all; gives what went wrong, by part."""
    ids = {part: ask(part.storage, verb, arguments) for part in parts}
    failures: dict[str, HoldfastError] = {}
    for part, id in ids.items():
        if not wait:
            answer(as_json, {"part": part.name, "request": id}, f"{part.name}: {id}")
            continue
        try:
            await_end(part.storage, part.url, id, verb, timeout, as_json=as_json, part=part.name)
        except HoldfastError as failure:
            failures[part.name] = failure
    return failures
