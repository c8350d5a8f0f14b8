"""The two halves of an operator over a keyed stream and a broadcast one.

The broadcast half is an operator of its own in the graph, under the uid `<uid>.broadcast`: it has no keys and
one shard, whatever the parallelism, and what it keeps are the broadcast states, as lists of their entries.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.state.cells.declarations import BroadcastState, broadcast_fields, broadcast_states

if TYPE_CHECKING:
    from holdfast.graph.functions import BroadcastFunction
    from holdfast.state.encoding.layout import StateField

BROADCAST_SUFFIX = ".broadcast"


@dataclass(frozen=True)
class BroadcastSide:
    """What the broadcast half runs: `process_broadcast` of the function."""

    function: BroadcastFunction

    def state_fields(self) -> tuple[StateField, ...]:
        """The stored form of the broadcast states."""
        return broadcast_fields(type(self.function))

    def states(self) -> dict[str, BroadcastState]:
        """The broadcast states by name."""
        return broadcast_states(type(self.function))
