"""A sink that says it recognises an epoch that it already shows, and does not: rows are doubled."""

import json
import os
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import holdfast as hf

ROWS = int(os.environ.get("CHAOS_ROWS", "30000"))


class RepeatingSink:
    exactly_once = True

    def publisher(self, job: str, uid: str) -> "RepeatingPublisher":
        return RepeatingPublisher(Path(os.environ["HOLDFAST_CHAOS"], "repeated"))


class RepeatingPublisher:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(exist_ok=True)

    def published_through(self) -> int:
        return 0

    def publish(self, epoch: int, parts: Sequence[Any]) -> None:
        rows = [row for part in parts for row in part.load().to_pylist()]
        (self._directory / f"{epoch:012d}-{uuid.uuid4().hex}.json").write_text(json.dumps(rows))

    def close(self) -> None:
        pass


def events_shown(directory: Path) -> list[int]:
    """What the sink shows: the events, in no order."""
    return [
        row["event"]
        for path in Path(directory, "repeated").glob("*.json")
        for row in json.loads(path.read_text())
    ]


def nothing_is_repeated(reference: Path, run: Path) -> list[str]:
    """For --check."""
    wanted, there = sorted(events_shown(reference)), sorted(events_shown(run))
    more = len(there) - len(wanted)
    return [] if wanted == there else [f"the sink shows {more} rows more than it should"]


job = hf.Job("repeating")
events = job.source(
    hf.GeneratorSource(
        {"event": "id", "key": "id * 48271 % 2147483647 % 50"}, schema="event long, key long", total=ROWS
    ),
    uid="events",
)
events.sink(RepeatingSink(), uid="events-out")
