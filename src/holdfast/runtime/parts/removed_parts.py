"""Rows that the parts of a job have left behind which it has no more: committed, and neither shown nor read.

What such a part remembers may be dropped by a user's word. Rows may not: they are refused with the ways out,
as those of a sink or a channel are that a part has no more.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress

from holdfast.checkpoint.chain.checkpoint import find_job, layouts, place_of_part
from holdfast.checkpoint.chain.history import History
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


def _reading(root: str, channel: str, known: list[LayoutRecord]) -> tuple[str, Position]:
    """The part that reads a channel, or did, and how far it has come: nowhere, if that cannot be read."""
    reader = next((each.channels[channel][1] for each in known if channel in each.channels), "")
    storage = open_storage(place_of_part(root, reader)) if reader else None
    with suppress(CorruptionError):
        if storage is not None and find_job(storage) is not None:
            return reader, Position.of(History(storage).load().positions.get(channel))
    return reader, Position()
