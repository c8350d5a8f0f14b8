"""Tells the readers of sources how far the job has come: what is committed, and what is needed no more.

Always true: a source is told of committed positions alone. What it is told to be released no commit needs
that the job could go back to, also one that loses its newest commit, and none that is pinned. Recovery
depends on none of it: what a reader raises here is said, and changes nothing.
Never here: what is retained (see checkpoint.chain.retention).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress

from holdfast.checkpoint.chain.pins import read_pins
from holdfast.checkpoint.chain.view import CheckpointView
from holdfast.connectors.contract import AcknowledgingReader, Json, SourceReader, TrimmingReader
from holdfast.errors import CorruptionError, HoldfastError, one_line
from holdfast.runtime.leader_context import LeaderContext


class Acknowledgements:
    """Of one load of the checkpoint. Of the leading thread."""

    def __init__(self, context: LeaderContext, readers: Mapping[str, SourceReader]) -> None:
        self._chain, self._say = context.checkpoint.chain, context.monitor.say
        self._acknowledging = {
            uid: each for uid, each in readers.items() if isinstance(each, AcknowledgingReader)
        }
        # Where state is had again from its rows, what is needed goes back further than any commit.
        trims = not context.settings.replays_state
        self._trimming = {
            uid: each for uid, each in readers.items() if trims and isinstance(each, TrimmingReader)
        }
        self._number = 0
        self._committed: dict[str, Json] = {}
        self._released: dict[str, Json] = {}
        self._retained: dict[int, tuple[int, Mapping[str, Json]]] = {}
        """Commit -> its last epoch, and its positions."""
        self._complaints: dict[str, str] = {}

    def step(self, view: CheckpointView) -> None:
        """Tell what is new since the last step. `view`: of the newest commit."""
        if view.number == self._number:
            return
        self._number = view.number
        for uid, acknowledging in self._acknowledging.items():
            self._tell(uid, view.positions, self._committed, acknowledging.committed)
        if self._trimming and (positions := self._needed_after(view)) is not None:
            for uid, trimming in self._trimming.items():
                self._tell(uid, positions, self._released, trimming.released)

    def _needed_after(self, view: CheckpointView) -> Mapping[str, Json] | None:
        """The positions that no commit goes back behind: those of the one that has come least far. None: they
        cannot be read now."""
        first = max(1, view.given_up_below)
        with suppress(HoldfastError):
            for number in range(first, view.number):
                if number not in self._retained:
                    record = self._chain.record(number)
                    self._retained[number] = record.last_epoch, record.positions
            self._retained[view.number] = view.last_epoch, view.positions
            self._retained = {number: kept for number, kept in self._retained.items() if number >= first}
            # One that is a rewind has come less far than those before it.
            return min([*self._retained.values(), *self._pinned(first, view)], key=lambda kept: kept[0])[1]
        return None

    def _pinned(self, first: int, view: CheckpointView) -> list[tuple[int, Mapping[str, Json]]]:
        """Of commits before `first` that are being copied: a savepoint takes along what was not read then."""
        pins = read_pins(self._chain.storage)
        if pins.damaged:
            raise CorruptionError(f"{pins.damaged[0]} is damaged; remove it once nobody needs it")
        older = {pin.commit for pin in pins.held_at(view.clock_ms) if pin.commit < first}
        records = [self._chain.record(number) for number in older]
        return [(record.last_epoch, record.positions) for record in records]

    def _tell(
        self, uid: str, positions: Mapping[str, Json], told: dict[str, Json], tell: Callable[[Json], None]
    ) -> None:
        position = positions.get(uid)
        if position is None or position == told.get(uid):
            return
        told[uid] = position
        try:
            tell(position)
        except Exception as failure:
            complaint = f"{type(failure).__name__}: {one_line(failure)}"
            if complaint != self._complaints.get(uid):
                self._say(f"source {uid!r} could not use what is committed ({complaint}); the job goes on")
            self._complaints[uid] = complaint
