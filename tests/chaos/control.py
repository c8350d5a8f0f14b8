"""What a test asks of the leader of a job, through its checkpoint."""

from __future__ import annotations

from typing import Any

from holdfast.clock import SystemClock
from holdfast.runtime.control.request_client import ask_leader, wait_for_end
from holdfast.storage.urls import open_storage
from tests.chaos.harness import DEADLINE_SECONDS, Scenario


def asked(scenario: Scenario, verb: str, **arguments: Any) -> None:
    """Ask, and wait until it is done."""
    storage = open_storage(str(scenario.place.checkpoint))
    request = ask_leader(storage, verb, arguments, SystemClock(), by="a test")
    ended = wait_for_end(
        storage, request.id, SystemClock(), taken_within=DEADLINE_SECONDS, ended_within=DEADLINE_SECONDS
    )
    scenario.history.add("control", f"{verb} {arguments}: {ended.state}")
    assert ended.state == "done", scenario.history.story()
