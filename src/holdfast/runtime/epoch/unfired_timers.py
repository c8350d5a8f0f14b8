"""Event timers that would never fire, because the watermark that they wait for is declared no more.

Windows, joins by time and a ttl by event time are refused without a watermark whatever is stored. A function
with `on_timer` is not: it may have processing timers alone. Whether it has others is in the checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.checkpoint.chain.view import CheckpointView
from holdfast.checkpoint.store.records import DeltaFile
from holdfast.errors import RestoreError
from holdfast.graph.event_time import watermarks_of
from holdfast.graph.functions import has_timers
from holdfast.graph.job_graph import Graph, OperatorNode
from holdfast.state.cells.timers import datetime_of
from holdfast.state.encoding.arrow_values import FIRST_US


def refuse_unfired(graph: Graph, view: CheckpointView, allow_dropped_state: bool) -> None:
    """RestoreError, a line for each operator whose event timers would never fire."""
    if found := unfired_timers(graph, view, allow_dropped_state):
        raise RestoreError("\n".join(found))


def unfired_timers(graph: Graph, view: CheckpointView, allow_dropped_state: bool) -> list[str]:
    """Why this job may not go on from that checkpoint: of each operator that has timers and no event time
    any more, the event timers that wait there."""
    if allow_dropped_state:
        return []
    found = []
    for node in graph.nodes:
        if not isinstance(node, OperatorNode) or not has_timers(node.function) or watermarks_of(node):
            continue
        waiting = _waiting(view, node.uid)
        if waiting is None:
            continue
        found.append(
            f"{node.place} operator {node.uid!r}: {waiting}, and not all of its rows have a watermark any "
            "more: event timers would never fire; declare .watermark(...) as it was, or drain the job once "
            "with the code that declared it, which fires them; or start with allow_dropped_state=True to "
            "leave them unfired"
        )
    return found


def _waiting(view: CheckpointView, uid: str) -> str | None:
    """What the checkpoint says of open event timers; None: there are none."""
    stand = _stand(view, uid)
    if stand.first_us is not None:
        return f"the checkpoint holds event timers, the first for {datetime_of(stand.first_us)}"
    # After a rescaling or in a savepoint it is not known. An operator that never had event time has none.
    if not stand.known and uid in view.watermarks:
        return "the checkpoint may hold event timers"
    return None


@dataclass(frozen=True)
class _Stand:
    """The earliest event timer that is open, as far as is known. `known`: of every shard."""

    first_us: int | None
    known: bool


def _stand(view: CheckpointView, uid: str) -> _Stand:
    newest: dict[int, DeltaFile] = {}
    for delta in view.live_deltas(uid):
        newest.update(dict.fromkeys(range(delta.first_group, delta.end_group), delta))
    in_snapshots = {
        group for file in view.snapshots.get(uid, ()) for group in range(file.first_group, file.end_group)
    }
    dues = [delta.next_due for delta in newest.values()]
    times = [due.event_us for due in dues if due is not None and due.event_us is not None]
    # No timer is that early: state with a ttl is due then whose age is not known, and hides what comes later.
    timers = [at_us for at_us in times if at_us >= FIRST_US]
    known = None not in dues and len(timers) == len(times) and in_snapshots <= newest.keys()
    return _Stand(min(timers, default=None), known)
