"""A job in parts as plain values: how each part stands, what waits in the channels between them, and which
barrier goes through them.

Always true: channels are counted from what both parts have committed, so it works with and without leaders.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import msgspec

from holdfast.admin.lost_epochs import lost_epochs
from holdfast.admin.status import standing
from holdfast.checkpoint.chain.barriers import begun_barrier, ending_of_barrier, newest_barrier
from holdfast.checkpoint.chain.channels import Channel
from holdfast.checkpoint.chain.checkpoint import find_job, place_of_part, read_layout
from holdfast.checkpoint.chain.history import History
from holdfast.checkpoint.chain.view import EMPTY, CheckpointView
from holdfast.checkpoint.store import names
from holdfast.checkpoint.store.records import LayoutRecord
from holdfast.clock import Clock
from holdfast.errors import CorruptionError, ObjectMissing, RestoreError
from holdfast.graph.parts import reading_order
from holdfast.runtime.parts.channel_source import Position
from holdfast.runtime.parts.waiting import NO_LIMITS, waiting_in
from holdfast.storage.contract import Storage
from holdfast.storage.urls import open_storage


@dataclass(frozen=True)
class StoredPart:
    """A part of a job, by its checkpoint."""

    name: str
    url: str

    @property
    def storage(self) -> Storage:
        return open_storage(self.url)


def stored_parts(storage: Storage, layout: LayoutRecord) -> list[StoredPart]:
    """The parts of a job, each after those that it reads from."""
    before: dict[str, set[str]] = {name: set() for name in layout.parts}
    for sender, reader in layout.channels.values():
        before[reader].add(sender)
    return [StoredPart(name, place_of_part(storage.url, name)) for name in reading_order(before)]


def job_standing(storage: Storage, clock: Clock, seconds: float) -> dict[str, Any]:
    """How a job stands, in parts or not: see `standing`. Of one in parts that is `parts` (name -> its own
    standing; None: it has not begun), `channels`, and of the newest `barrier` (None: there never was one)."""
    layout = read_layout(storage)
    if layout is None:
        return standing(storage, clock, seconds)
    parts = stored_parts(storage, layout)
    if any(part.storage.size(names.SAVEPOINT) is not None for part in parts):
        raise RestoreError(
            f"{storage.url} holds a savepoint of job {layout.job!r}, not its checkpoint; look at it with "
            f"`holdfast savepoints list {storage.url}`"
        )

    def look(part: StoredPart) -> dict[str, Any] | None:
        return None if find_job(part.storage) is None else standing(part.storage, clock, seconds)

    # At once: a leader that does not answer is waited for.
    with ThreadPoolExecutor(len(parts)) as looks:
        found = dict(zip((part.name for part in parts), looks.map(look, parts), strict=True))
    views, problems = _views(parts)
    channels = channels_plainly(layout, views, problems)
    for told in channels:
        if "problem" not in told and told["to"] is not None:
            told["lost"] = _lost(told, parts, views)
    barrier = barrier_plainly(storage, views)
    return {
        "job": layout.job, "parts": found, "channels": channels, "barrier": barrier, "now_ms": clock.now_ms(),
    }  # fmt: skip


def _lost(told: dict[str, Any], parts: list[StoredPart], views: dict[str, CheckpointView]) -> Any:
    """What is lost of a channel, as plain values; None: nothing is."""
    uid, reader = told["channel"], told["to"]
    channel = views[told["from"]].channels.get(uid, Channel())
    history = History(next(part.storage for part in parts if part.name == reader))
    return msgspec.to_builtins(lost_epochs(uid, channel, history, views[reader]))


def channels_plainly(
    layout: LayoutRecord, views: dict[str, CheckpointView], problems: dict[str, str]
) -> list[dict[str, Any]]:
    """The channels between parts whose newest commits these are. `problems`: the parts whose cannot be read,
    and why. A channel that holds rows and that the job has no more is `to` None."""
    found = []
    for uid, (sender, reader) in layout.channels.items():
        told: dict[str, Any] = {"channel": uid, "from": sender, "to": reader}
        if problem := problems.get(sender) or problems.get(reader):
            found.append({**told, "problem": problem})
            continue
        limits = layout.limits.get(uid)
        channel = views[sender].channels.get(uid, Channel())
        position = Position.of(views[reader].positions.get(uid))
        waiting = waiting_in(uid, channel, reader, position, limits or NO_LIMITS)
        found.append(
            {
                **told, "epochs": waiting.epochs, "rows": waiting.rows, "bytes": waiting.bytes,
                "kept_bytes": waiting.kept_bytes, "full": waiting.full if limits else None,
                "sent_through": channel.through, "read_through": position.epoch, "released": channel.released,
            }
        )  # fmt: skip
    return found + _left_behind(layout, views)


def barrier_plainly(root: Storage, views: dict[str, CheckpointView]) -> dict[str, Any] | None:
    """The newest barrier of a job whose parts have these newest commits, and what became of it. While it is
    under way `not_come_to` names the parts that do not carry it yet, of those that can be read."""
    number = newest_barrier(root).number
    if not number:
        return None
    try:
        begun, ended = begun_barrier(root, number), ending_of_barrier(root, number)
    except (CorruptionError, ObjectMissing) as damage:
        return {"barrier": number, "problem": str(damage)}
    coming = [
        name
        for name, view in views.items()
        if not view.ended and all(place.number != number for place in view.barriers)
    ]
    return {
        "barrier": number, "by": begun.by, "begun_ms": begun.begun_ms, "ends_runs": begun.ends,
        "state": ended.outcome if ended else "under way", "not_come_to": [] if ended else sorted(coming),
        "ended_ms": ended.at_ms if ended else None, "reason": ended.reason if ended else "",
    }  # fmt: skip


def _left_behind(layout: LayoutRecord, views: dict[str, CheckpointView]) -> list[dict[str, Any]]:
    found = []
    for sender, view in views.items():
        for uid, channel in view.channels.items():
            waiting = waiting_in(uid, channel, "", Position(channel.released))
            # One that is kept for readers outside is no channel between parts.
            if layout.channels.get(uid, ("", ""))[0] != sender and waiting.rows and not channel.kept:
                found.append(
                    {
                        "channel": uid, "from": sender, "to": None, "epochs": waiting.epochs,
                        "rows": waiting.rows, "bytes": waiting.bytes, "kept_bytes": 0, "full": None,
                        "sent_through": channel.through, "read_through": None, "released": channel.released,
                    }
                )  # fmt: skip
    return found


def _views(parts: list[StoredPart]) -> tuple[dict[str, CheckpointView], dict[str, str]]:
    """The newest commit of each part, and why one cannot be read. Readers first: no part is seen to have read
    what the part before it has not sent."""
    views: dict[str, CheckpointView] = {}
    problems: dict[str, str] = {}
    for part in reversed(parts):
        try:
            begun = find_job(part.storage) is not None
            views[part.name] = History(part.storage).load() if begun else EMPTY
        except CorruptionError as damage:
            problems[part.name] = str(damage)
    return views, problems
