"""Asking the leader of a job something, from any process that reaches its checkpoint storage.

Always true: a request that no leader took in time is taken back, so that no later one carries it out; when
it is not known whether that worked, the answer says so.
"""

from __future__ import annotations

import getpass
import os
import secrets
import socket
from collections.abc import Callable
from typing import Any

import msgspec

from holdfast.checkpoint.log.requests import Asked, State, ask, forget, read_asked, take_back
from holdfast.checkpoint.store.log_records import RequestRecord
from holdfast.clock import Clock
from holdfast.errors import RestoreError
from holdfast.runtime.control.verbs import checked
from holdfast.storage.contract import Storage

LOOK_SECONDS = 0.2
TAKEN_SECONDS = 15.0
"""A leader looks twice a second: a request that waits this long has no leader to take it."""


def ask_leader(
    storage: Storage, verb: str, arguments: dict[str, Any], clock: Clock, *, by: str
) -> RequestRecord:
    """Leave a checked request in storage and return at once. DefinitionError: nothing was written."""
    values = msgspec.to_builtins(checked(verb, arguments))
    return ask(storage, verb, values, token=secrets.token_hex(4), asked_by=by, now_ms=clock.now_ms())


def wait_for_end(
    storage: Storage,
    id: str,
    clock: Clock,
    *,
    taken_within: float,
    ended_within: float,
    tell: Callable[[Asked], None] = lambda asked: None,
) -> Asked:
    """Wait until the request has ended, or as long as allowed; `tell` hears how it stands at every look.

    One that no leader took within `taken_within` seconds is taken back: it ends as refused, unless a leader
    was quicker after all.
    """
    began = clock.monotonic()
    while True:
        asked = read_asked(storage, id)
        tell(asked)
        waited = clock.monotonic() - began
        if asked.state.ended:
            return asked
        if asked.state is State.WAITING and waited >= taken_within:
            why = f"nobody took it within {taken_within:g} s, so it was taken back"
            asked = take_back(storage, id, clock.now_ms(), why)
            if asked.state.ended:
                return asked
        if waited >= ended_within:
            return asked
        clock.sleep(LOOK_SECONDS)


def status_of_leader(
    storage: Storage, clock: Clock, seconds: float, *, by: str, process: str = ""
) -> dict[str, Any] | None:
    """The leader's own word on where the run stands; None: no answer came in time. Leaves nothing behind.
    `process`: of a set of replicas, that of this member."""
    id = ask_leader(storage, "status", {"process": process} if process else {}, clock, by=by).id
    try:
        asked = wait_for_end(storage, id, clock, taken_within=seconds, ended_within=seconds)
    except RestoreError:
        return None
    finally:
        forget(storage, id)
    return asked.answer.result if asked.answer is not None and asked.state is State.DONE else None


def asker(through: str) -> str:
    """Who this process is, for the record."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        # In containers users often have a number and no name.
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}, {through}"
