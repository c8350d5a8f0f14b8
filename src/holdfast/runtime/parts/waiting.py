"""What waits in a channel, counted from what its two parts have committed: by a leader, and from storage.

Always true: what its reader has read and committed does not wait, though it is kept for going back.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from holdfast.checkpoint.chain.channels import Channel
from holdfast.runtime.parts.channel_source import Position, unread_files

NO_LIMITS = (math.inf, math.inf)


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """What waits in a channel, after the newest commit of the part that reads it."""

    channel: str
    part: str
    epochs: int
    bytes: int
    rows: int
    kept_bytes: int
    """Of what was read: kept because the part may go back."""
    share: float
    """Of the limit."""

    @property
    def full(self) -> bool:
        return self.share >= 1

    @property
    def told(self) -> dict[str, Any]:
        """As progress shows it."""
        return {
            "part": self.part,
            "epochs": self.epochs,
            "rows": self.rows,
            "bytes": self.bytes,
            "kept_bytes": self.kept_bytes,
            "full": self.full,
        }


def waiting_in(
    uid: str, channel: Channel, reader: str, position: Position, limits: tuple[float, float] = NO_LIMITS
) -> Waiting:
    """What part `reader`, which has committed that it is at `position`, has still to read. `limits`: how many
    bytes and epochs may wait."""
    unread = unread_files(channel, position)
    waiting = sum(file.extent.length for file in unread)
    epochs = len({file.epoch for file in unread})
    return Waiting(
        channel=uid, part=reader, epochs=epochs, bytes=waiting, rows=sum(file.rows for file in unread),
        kept_bytes=sum(file.extent.length for file in channel.files) - waiting,
        share=max(waiting / limits[0], epochs / limits[1]),
    )  # fmt: skip
