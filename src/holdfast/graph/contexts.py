"""What a function knows besides its rows: the `ctx` of `open`, `process` and the like."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.state.cells.misuse import Misuse

if TYPE_CHECKING:
    from holdfast.state.cells.timers import Timers

OutputRow = tuple[Any, ...] | list[Any] | Mapping[str, Any]
"""A row that a function gives out: values in the order of the declared columns, or by their names."""


class FunctionContext:
    """What functions that see single rows have in common."""

    __slots__ = ("_key", "_sides", "epoch", "timestamp")

    epoch: int
    """The number of the epoch that the row is part of."""
    timestamp: int
    """Processing time in ms since 1970: when the epoch was planned, however often it is run."""

    def __init__(self, epoch: int, timestamp: int, sides: dict[str, list[Any]]) -> None:
        self.epoch, self.timestamp = epoch, timestamp
        self._sides = sides
        self._key: Any = None

    def emit_to(self, name: str, row: OutputRow) -> None:
        """Add a row to the side output `name`, which the function declares in `outputs`."""
        side = self._sides.get(name) if name else None
        if side is None:
            known = ", ".join(repr(known) for known in self._sides if known) or "none"
            raise Misuse(
                f"there is no side output {name!r}; declared in outputs = {{...}}: {known}; "
                f"declare it there, with its columns"
            )
        side.append(row)


class Context(FunctionContext):
    """What a KeyedFunction knows besides its row: `key`, `epoch`, `timestamp`, `watermark`, `timers`, and
    `emit_to`."""

    __slots__ = ("_timers", "closing", "timer", "watermark")

    watermark: datetime | None
    """Up to where event time has come: no earlier rows are expected. While rows are handled that of the epoch
    before, in `on_timer` that of this one. None: not known yet, or there is no event time."""
    timer: Literal["event", "processing"] | None
    """In `on_timer`: which clock the timer goes by."""
    closing: bool
    """The input has ended, and this is the epoch that closes what is open: a timer that is set now waits for
    a later run, so what is to be told of the key is told now."""

    def __init__(self, epoch: int, timestamp: int, sides: dict[str, list[Any]]) -> None:
        super().__init__(epoch, timestamp, sides)
        self._timers: Timers | None = None
        self.watermark, self.timer, self.closing = None, None, False

    @property
    def timers(self) -> Timers:
        """Sets and deletes timers of the key: `timers.event(at)`, `timers.processing(at)`."""
        if self._timers is None:
            raise Misuse(
                "timers are those of a key, of a function that has a method on_timer(self, at, ctx); write "
                "one, and set timers in process or on_timer"
            )
        return self._timers

    @property
    def key(self) -> Any:
        """The row's key: a tuple where there are several key columns. None in `open`."""
        return self._key


class ShardContext(FunctionContext):
    """What an OperatorFunction knows besides its row: `shard`, `shards`, `epoch`, `timestamp`, and `emit_to`.

    It has no key.
    """

    __slots__ = ("shard", "shards")

    shard: int
    """Where this runs: a number from 0."""
    shards: int
    """How many there are."""

    def __init__(
        self, shard: int, shards: int, epoch: int, timestamp: int, sides: dict[str, list[Any]]
    ) -> None:
        super().__init__(epoch, timestamp, sides)
        self.shard, self.shards = shard, shards


class BroadcastContext(FunctionContext):
    """What `process_broadcast` knows besides its row: `epoch`, `timestamp`, and `emit_to`. It has no key."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class BatchContext:
    """What a BatchFunction knows besides its rows: `keys`, `key_index`, `epoch` and `timestamp`."""

    keys: pa.Table
    """The distinct keys of the rows: the key columns, one row per key."""
    key_index: npt.NDArray[np.int32]
    """For each of the rows, which row of `keys` is its key."""
    epoch: int
    """The number of the epoch that the rows are part of."""
    timestamp: int
    """Processing time in ms since 1970: when the epoch was planned, however often it is run."""
