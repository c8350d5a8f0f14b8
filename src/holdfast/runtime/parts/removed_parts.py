"""Rows that would be lost because a job has no more what it had, or has again what it had not meanwhile.

What a part remembers that the job has no more may be dropped by a user's word. Rows may not: those that are
committed, and neither shown nor read, are refused with the ways out, as those of a sink or a channel are that
a part has no more. So is a channel that is there again after its sender went on without it: its reader would
go on behind a gap.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress

from holdfast.checkpoint.chain.checkpoint import find_job, layouts, place_of_part
from holdfast.checkpoint.chain.history import History
from holdfast.checkpoint.chain.view import CheckpointView
from holdfast.checkpoint.store.records import LayoutRecord
from holdfast.errors import CorruptionError, RestoreError
from holdfast.runtime.epoch.publisher import left_behind
from holdfast.runtime.parts.channel_source import Position, unread_files
from holdfast.storage.urls import open_storage


def refuse_left_rows(root: str, parts: Collection[str]) -> None:
    """RestoreError: rows wait in a part that is none of `parts` any more. `root`: the place of the job."""
    known = list(layouts(open_storage(root)))
    for part in dict.fromkeys(name for layout in known for name in layout.parts if name not in parts):
        storage = open_storage(place_of_part(root, part))
        try:
            if find_job(storage) is None:
                continue
            view = History(storage).load()
        except CorruptionError as damage:
            raise RestoreError(
                f"the job no longer has part {part!r}, and whether rows wait there cannot be read: "
                f"{damage}; restore {storage.url} from a copy, or remove it"
            ) from damage
        for refusal in left_behind(view, (), storage.url):
            raise RestoreError(f"the job no longer has part {part!r}: {refusal}")
        for uid, channel in view.channels.items():
            reader, position = _reading(root, uid, known)
            rows = sum(file.rows for file in unread_files(channel, position))
            # Of one that is kept for others it is not known how far they have read.
            if rows and not channel.kept:
                raise RestoreError(
                    f"the job no longer has part {part!r}, and its channel {uid!r} holds {rows} rows that "
                    f"part {reader!r} has not read; start the former job until they are read, or give them "
                    f"up with `holdfast channels remove {uid} --app FILE --checkpoint {storage.url}`"
                )


def refuse_gaps(root: str, channels: Mapping[str, tuple[str, str]]) -> None:
    """RestoreError: a part has read one of these channels, and the part before it has gone on without. What
    cannot be read now is left to the sender, which says in the channel where it begins. `root`: the place of
    the job."""
    for uid, (before, after) in channels.items():
        sender, reader = (_newest(root, part) for part in (before, after))
        stored = reader.positions.get(uid) if reader is not None else None
        if sender is None or stored is None or uid in sender.channels:
            continue
        at = Position.of(stored)
        if at.epoch < sender.last_epoch:
            raise RestoreError(
                f"part {after!r} has read channel {uid!r} up to {at}, and part {before!r} has come to epoch "
                f"{sender.last_epoch} without it: what comes after that and up to epoch {sender.last_epoch} "
                "was not sent, or was given up. Give the channel another uid: it then begins with what is "
                "sent from now on, and the part goes on with what it remembers; for one that remembers "
                "nothing give the part another name, too"
            )


def _newest(root: str, part: str) -> CheckpointView | None:
    """What the newest commit of a part says; None: there is none, or it cannot be read."""
    storage = open_storage(place_of_part(root, part))
    with suppress(CorruptionError):
        if find_job(storage) is not None:
            return History(storage).load()
    return None


def _reading(root: str, channel: str, known: list[LayoutRecord]) -> tuple[str, Position]:
    """The part that reads a channel, or did, and how far it has come: nowhere, if that cannot be read."""
    reader = next((each.channels[channel][1] for each in known if channel in each.channels), "")
    view = _newest(root, reader) if reader else None
    return reader, Position.of(view.positions.get(channel) if view is not None else None)
