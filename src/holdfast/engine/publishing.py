"""Makes committed epochs visible in sinks: in order, whole, once.

Always true: what an exactly-once sink shows is a prefix of the committed epochs; `through` never names an
epoch that a sink has not shown.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable
from enum import Enum
from functools import partial

from holdfast.checkpoint.records import StagedFile
from holdfast.checkpoint.view import CheckpointView
from holdfast.engine.program import Program
from holdfast.engine.staged import load_extent
from holdfast.errors import RestoreError
from holdfast.io.contract import Publisher, StagedPart
from holdfast.steps import Step, reached


class Recipients(Enum):
    """Which sinks are meant: those that recognise an epoch they already show, those that cannot, or all."""

    DEDUPING = "deduping"
    REPEATING = "repeating"
    ALL = "all"


class Publishing:
    """The open sinks of a run. `publish` is called by one thread at a time for each sink."""

    def __init__(self, program: Program, identity: str, storage_url: str, view: CheckpointView) -> None:
        """`view`: says what was published. A sink that shows more is believed, never one that shows less. A
        sink that the job did not have before begins with the oldest output that is still there.
        """
        recorded, new = view.published_through, view.staged[0].epoch - 1 if view.staged else view.last_epoch
        self._storage_url = storage_url
        self._streams = program.sinks
        self._publishers: dict[str, Publisher] = {}
        self._dedupes = {node.uid: node.sink.exactly_once for node in program.graph.sinks}
        self._lock = threading.Lock()
        self.through: dict[str, int] = {}
        try:
            for node in program.graph.sinks:
                publisher = node.sink.publisher(f"{program.graph.name} ({identity})", node.uid)
                self._publishers[node.uid] = publisher
                shown = publisher.published_through()
                self.through[node.uid] = max(recorded.get(node.uid, new), shown)
        except BaseException:
            # The run tries again, and opens all of them again.
            self.close()
            raise

    def refuse_ahead(self, epoch: int) -> None:
        """Refuse sinks that show more than `epoch`: the job that was stopped with a savepoint has gone on
        from its own checkpoint since, and epochs of the same numbers would be taken for shown.
        """
        ahead = [f"{uid!r} shows epoch {shown}" for uid, shown in self.through.items() if shown > epoch]
        if ahead:
            raise RestoreError(
                f"the savepoint ends with epoch {epoch} and its job went on since: sink {', '.join(ahead)}; "
                "start without claim and with sinks of its own"
            )

    def publish(self, first: int, last: int, staged: Iterable[StagedFile], to: Recipients) -> None:
        """Make epochs `first` to `last` visible. What a sink has shown already it is not given again."""
        reached(Step.BEFORE_PUBLISH)
        by_stream: dict[tuple[str, int], list[StagedFile]] = {}
        for file in staged:
            by_stream.setdefault((file.stream, file.epoch), []).append(file)
        for uid, publisher in self._publishers.items():
            if to is not Recipients.ALL and self._dedupes[uid] is not (to is Recipients.DEDUPING):
                continue
            assert first <= self.through[uid] + 1, f"epoch {first} of {uid} would come before those it lacks"
            for epoch in range(max(first, self.through[uid] + 1), last + 1):
                files = sorted(by_stream.get((self._streams[uid], epoch), ()), key=lambda file: file.part)
                publisher.publish(
                    epoch, [StagedPart(file.part, file.rows, self._loader(file)) for file in files]
                )
                with self._lock:
                    self.through = {**self.through, uid: epoch}
                reached(Step.SINK_PUBLISHED)

    def close(self) -> None:
        """Close every sink; raises the last failure after all were tried."""
        with contextlib.ExitStack() as closing:
            for publisher in self._publishers.values():
                closing.callback(publisher.close)

    def _loader(self, file: StagedFile) -> Callable[[], object]:
        return partial(load_extent, self._storage_url, file.extent)
