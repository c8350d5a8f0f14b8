"""The lane sinks of a run: asked when it begins, brought up to date, then written lane by lane.

    start       marks of the sink, beside what the checkpoint knows -> lane_marks: where it stands
    begin       marks that are not there are made; rows that the sink has lost are shown again
    an epoch    connectors.lane_publisher: small ones from here, large ones by lane_jobs

Never here: what marks mean (see lane_marks), and the order of epochs (see publisher).
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.checkpoint.chain.history import History
from holdfast.checkpoint.chain.view import CheckpointView
from holdfast.checkpoint.store.records import StagedFile
from holdfast.connectors.contract import Mark, StagedPart
from holdfast.connectors.lane_publisher import LanePublisher
from holdfast.connectors.lanes import LaneSink, LaneWriter
from holdfast.errors import HoldfastError
from holdfast.graph.guarantees import Guarantee
from holdfast.graph.job_graph import SinkNode
from holdfast.runtime.epoch.lane_jobs import LaneJobs
from holdfast.runtime.epoch.lane_marks import LaneQuestion, LaneStanding, standing
from holdfast.runtime.leader_context import AdoptedOther, LeaderContext


def lane_writer_of(node: SinkNode, job: str) -> LaneWriter | None:
    """The writer of a sink that is written from tasks; None: it is written on the driver."""
    return node.sink.lane_writer(job, node.uid) if isinstance(node.sink, LaneSink) else None


def lane_publisher_of(context: LeaderContext, uid: str, writer: LaneWriter) -> LanePublisher:
    """What has lanes written: here, or by Spark's tasks."""
    return LanePublisher(
        writer,
        name=f"sink {uid!r}",
        term=context.term,
        clock=context.clock,
        elsewhere=LaneJobs(context.spark, writer, uid, context.term),
        look=context.refuse_if_superseded,
        say=context.monitor.say,
    )


class LanePublishing:
    """The publisher of one lane sink."""

    def __init__(
        self,
        context: LeaderContext,
        node: SinkNode,
        writer: LaneWriter,
        view: CheckpointView,
        history: History,
    ) -> None:
        """Asks the sink, and `history` of what led to `view`. Raises as `lane_marks.standing` does, and if it
        cannot be reached."""
        self._uid, self._context = node.uid, context
        self._remembers = node.sink.exactly_once
        self._lanes = lane_publisher_of(context, node.uid, writer)
        try:
            self.standing = self._asked(view, history)
        except BaseException:
            self.close()
            raise
        self._lanes.shown = dict(self.standing.shown)
        self.lost: dict[int, list[StagedFile]] = {}
        """Epoch -> rows of it that the sink had shown and does not show now. To be shown again after `begin`,
        in order."""
        for file in sorted(self.standing.again, key=lambda file: file.epoch):
            self.lost.setdefault(file.epoch, []).append(file)

    def _asked(self, view: CheckpointView, history: History) -> LaneStanding:
        question = LaneQuestion(
            self._uid,
            self._lanes.marks() if self._remembers else {},
            view,
            history,
            replaces=self._context.settings.guarantee is not Guarantee.AT_MOST_ONCE,
        )
        if not self._remembers:
            return LaneStanding(question.recorded, Mark(0), {}, 0)

        def gone_on() -> HoldfastError | None:
            """The leader before us may have committed, and published, after we had read the chain."""
            if max(history.numbers(), default=0) > view.number:
                return AdoptedOther(f"commit {view.number + 1} came first; going on from it")
            return None

        return standing(question, gone_on)

    def begin(self) -> None:
        """Make the marks."""
        if self._remembers:
            self._lanes.begin(self.standing.begins)
            if self.standing.news:
                self._context.monitor.say(self.standing.news)

    @property
    def lanes_through(self) -> dict[str, tuple[int, int]]:
        """What commits say of the lanes."""
        shown = dict(self._lanes.shown or {})  # Of the thread of the sink, which may add to it now.
        return {str(lane): (mark.epoch, mark.rows) for lane, mark in shown.items() if mark.rows}

    def published_through(self) -> int:
        return self._lanes.published_through() if self._remembers else 0

    def publish(self, epoch: int, parts: Sequence[StagedPart]) -> None:
        self._lanes.publish(epoch, parts)

    def close(self) -> None:
        self._lanes.close()
