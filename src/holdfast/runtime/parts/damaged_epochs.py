"""Damage in a channel, as the part that reads it and the part that sent it tell their drivers of it.

Both end what they lead from one load of the checkpoint to the next; what follows is in epochs_again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from holdfast.checkpoint.store.records import PlanRecord, SentFile
from holdfast.connectors.contract import SourceReader
from holdfast.errors import HoldfastError, RestoreError, RetryableError
from holdfast.runtime.epoch.epoch_frames import slice_of
from holdfast.runtime.parts.channel_source import ChannelReader, OpenChannel, Position


@dataclass(frozen=True)
class Request:
    """Part `part`, which reads a channel, asks in its commit `commit` for an epoch of it again."""

    channel: str
    part: str
    epoch: int
    commit: int


class EpochDamaged(HoldfastError):
    """A file that an epoch reads from a channel is damaged or missing. `sender`: the part that sent it.
    `planned`: the epoch that reads it. `begins`: whether that reads the damaged epoch from its beginning."""

    def __init__(self, file: SentFile, sender: str, planned: int, begins: bool) -> None:
        super().__init__(file, sender, planned, begins)
        self.file, self.sender, self.planned, self.begins = file, sender, planned, begins

    def __str__(self) -> str:
        file = self.file
        return (
            f"epoch {file.epoch} of channel {file.channel!r}, sent by part {self.sender!r}, cannot be read: "
            f"{file.extent.object} is damaged or missing"
        )


class EpochsAsked(HoldfastError):
    """Parts that read channels of this one have found epochs damaged."""

    def __init__(self, requests: Sequence[Request]) -> None:
        super().__init__(requests)
        self.requests = requests

    def __str__(self) -> str:
        each = (f"epoch {one.epoch} of channel {one.channel!r} for {one.part!r}" for one in self.requests)
        return f"to be computed again: {', '.join(each)}"


def damaged_epoch(plan: PlanRecord, readers: Mapping[str, SourceReader]) -> HoldfastError | None:
    """What is damaged of the channels that a plan reads; None: nothing is."""
    for uid, part in plan.slices.items():
        reader = readers[uid]
        if part.skipped or not isinstance(reader, OpenChannel):
            continue
        file = reader.damaged(slice_of(part))
        if file is None:
            if epoch := reader.replaced(slice_of(part)):
                return RetryableError(
                    f"epoch {epoch} of channel {uid!r} of {reader.sender} was computed again since epoch "
                    f"{plan.epoch} was planned, whose plan names files that are gone; the next attempt plans "
                    "it anew, if nothing can have shown it"
                )
            continue
        if isinstance(reader, ChannelReader):
            begins = Position.of(part.start) <= Position(file.epoch - 1)
            return EpochDamaged(file, reader.part, plan.epoch, begins)
        return RestoreError(
            f"epoch {file.epoch} of channel {file.channel!r} of {reader.sender} cannot be read: "
            f"{file.extent.object} is damaged or missing, and is not computed again for readers that the "
            "sender does not know, of which some may have read it; restore the file from a copy, or give its "
            f"rows up with `holdfast skip --epoch {plan.epoch}`"
        )
    return None
