"""What is in the files of a simulated job in parts, and what it is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from holdfast.state.contract import EMPTY_VERSION, Version
from tests.sim.event_time import Rows

CLOSED = "closed"
"""In the place of an input: the rows of the windows that an epoch has closed."""


class Content(msgspec.Struct, frozen=True):
    """What a task leaves of an epoch. `read`: the rows of each input; `sent`: those in this file that go into
    channels; `through`: of a delta, the last row of each input that the state is made of. `made_by`: other
    bytes, whenever the epoch is computed again."""

    made_by: str
    read: dict[str, Rows] = {}
    sent: Rows = (0, 0)
    through: dict[str, int] = {}

    def encoded(self) -> bytes:
        return msgspec.json.encode(self)

    @staticmethod
    def of(data: bytes) -> Content:
        return msgspec.json.decode(data, type=Content)


@dataclass(frozen=True)
class PartState:
    """After an epoch: how far each input was read, and the last row of it that took effect."""

    through: Mapping[str, int] = field(default_factory=dict)
    positions: Mapping[str, Any] = field(default_factory=dict)
    version: Version = EMPTY_VERSION


@dataclass(frozen=True)
class Sent:
    """A file in a channel, as the first commit of its epoch has it."""

    object: str
    rows: Rows
