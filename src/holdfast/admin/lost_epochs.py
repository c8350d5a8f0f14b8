"""Epochs of a channel that were found damaged and are not there again yet, by the checkpoints of both parts.

Never here: how they are computed again (see runtime.parts.epochs_again).
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from holdfast.checkpoint.chain.channels import Channel
from holdfast.checkpoint.chain.history import History
from holdfast.checkpoint.chain.view import CheckpointView
from holdfast.errors import CorruptionError
from holdfast.runtime.parts.channel_source import Position


@dataclass(frozen=True)
class LostEpochs:
    """`epochs` of a channel that its reader waits for. `commit` of the reader has asked for the newest of
    them; `asked_ms`: the time of the last epoch before that commit (None: not known). `answered`: the sender
    has gone back, and computes them."""

    epochs: tuple[int, ...]
    commit: int
    asked_ms: int | None
    answered: bool


def lost_epochs(uid: str, channel: Channel, reader: History, view: CheckpointView) -> LostEpochs | None:
    """What is lost of a channel, whose reader is at `view`; None: nothing is."""
    epoch, commit = view.asked.get(uid, (0, 0))
    read = Position.of(view.positions.get(uid)).newest
    is_open = commit > channel.answered and read < epoch <= channel.through
    epochs = sorted({*channel.lost, *((epoch,) if is_open else ())})
    if not epochs:
        return None
    asked_ms = None
    with suppress(CorruptionError):
        # One that is no longer retained is not read.
        asked_ms = (reader.record(commit).clock_ms or None) if commit else None
    return LostEpochs(tuple(epochs), commit, asked_ms, not is_open)
