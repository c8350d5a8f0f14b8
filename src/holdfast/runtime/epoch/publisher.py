"""Makes committed epochs visible in sinks: in order, whole, once.

Always true: what an exactly-once sink shows is a prefix of the committed epochs; `through` never names an
epoch that a sink has not shown, but for those that broke off where no row may be shown twice. Rows go to the
sinks that they were staged for, however the job has changed since; where the job no longer has such a sink
the run is refused, and no row is dropped.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from enum import Enum
from functools import partial
from typing import Any, NamedTuple

from holdfast.checkpoint.chain.commits import Chain
from holdfast.checkpoint.chain.history import History
from holdfast.checkpoint.chain.view import CheckpointView, LanesThrough
from holdfast.checkpoint.store.records import StagedFile
from holdfast.connectors.contract import (
    CheckedSink,
    KeepingPublisher,
    Mark,
    Publisher,
    RememberingPublisher,
    StagedPart,
)
from holdfast.connectors.lane_publisher import FilingPublisher
from holdfast.errors import (
    CorruptionError,
    DefinitionError,
    HoldfastError,
    MachineError,
    RestoreError,
    SinkFailed,
    SinkWentBack,
    Unavailable,
    first_line,
)
from holdfast.graph.guarantees import Guarantee
from holdfast.graph.job_graph import SinkNode
from holdfast.runtime.epoch.lane_sinks import LanePublishing, lane_publisher_of, lane_writer_of
from holdfast.runtime.epoch.outages import Outages
from holdfast.runtime.epoch.showing import RowsOfPart, Showing, set_aside_command, tried_again
from holdfast.runtime.leader_context import LeaderContext
from holdfast.steps import Step, reached
from holdfast.tasks.task_output import load_extent


class Recipients(Enum):
    """Which sinks are meant: those that recognise an epoch they already show, those that cannot, or all."""

    DEDUPING = "deduping"
    REPEATING = "repeating"
    ALL = "all"


class Answer(NamedTuple):
    """What a sink says that it shows; the epochs, and those with rows, that it has shown by that and by the
    commits."""

    mark: Mark
    through: int
    rows_through: int


class Publishing:
    """The open sinks of a run. Once they are open each is used by one thread alone.

    A start asks all of them, and binds them to the job before anything is planned: one that refuses is an
    error of the start. Where the job goes on, its sinks have taken it before: each is bound by its own thread
    (`show`), and refuses alone.
    """

    def __init__(self, context: LeaderContext, view: CheckpointView) -> None:
        """`view`: says what was published. A sink that shows more is believed, never one that shows less. A
        sink that the job did not have before begins with the next epoch.

        RestoreError: rows wait for a sink that the job no longer has, or whether a sink has shown them cannot
        be told. ToldToStop: the run was, while the server of a sink was not there.
        """
        program, checkpoint = context.program, context.checkpoint
        self._context, self._storage_url, self._monitor = context, checkpoint.storage.url, context.monitor
        self.outages = Outages(context, "sink")
        self.outages.on_change = self._tell
        self._shared = context.replica is not None
        """Whether other processes show the same epochs in the same sinks at the same time."""
        self._streams = program.sinks
        self._nodes = {node.uid: node for node in program.graph.sinks}
        self._publishers: dict[str, Publisher] = {}
        self._left: set[str] = set()
        self._lanes: dict[str, LanePublishing] = {}
        self._dedupes = {node.uid: node.sink.exactly_once for node in program.graph.sinks}
        self._guarantee = context.settings.guarantee
        self.broken_off: dict[str, int] = {}
        """Sink -> the newest epoch of which it may show a part, and is not shown the rest."""
        self._lock = threading.Lock()
        self._unbound = set(self._nodes) if context.goes_on else set[str]()
        """Sinks that their own threads have still to bind; of these, what is asked again before that:"""
        self._unasked: set[str] = set()
        self._retained_from = view.retained_from
        self._last_epoch = _last_known(view)
        self.shown: dict[str, Mark] = {}
        """What each exactly-once sink itself says that it shows, as of the start."""
        self.through = {uid: _recorded(view, uid) for uid in self._nodes}
        self.rows_through = {uid: view.rows_through.get(uid, 0) for uid in program.sinks}
        """The newest epoch with rows that each sink has shown. Read after `through`, it misses none of those
        up to there."""
        try:
            self._refuse_removed(view)
            for uid, node in self._nodes.items():
                try:
                    answer = self.outages.awaited(uid, partial(self._ask, node, checkpoint.chain, view))
                except HoldfastError as refusal:
                    if not (context.goes_on and _no_plan_needs(node, refusal, context)):
                        raise
                    self._unasked.add(uid)
                else:
                    self._go_by(uid, answer)
                    if node.sink.exactly_once:
                        # Others are shown epochs before these are committed, and are given them again.
                        self.shown[uid] = answer.mark
        except BaseException:
            # The run tries again, and opens all of them again.
            self.close()
            raise

    def _ask(self, node: SinkNode, history: History, view: CheckpointView) -> Answer:
        """Have a sink say what it shows."""
        uid, mark = node.uid, self._opened(node, history, view)
        recorded, rows_through = _recorded(view, uid), view.rows_through.get(uid, 0)
        if uid in self._lanes:
            # Of an epoch that it shows by half, the rest is still to be shown.
            return Answer(mark, self._lanes[uid].standing.through, rows_through)
        if mark.epoch > recorded:
            rows_through = max(mark.epoch, rows_through)
        return Answer(mark, max(recorded, mark.epoch), rows_through)

    def _go_by(self, uid: str, answer: Answer) -> None:
        with self._lock:
            rows_through = max(answer.rows_through, self.rows_through.get(uid, 0))
            self.rows_through = {**self.rows_through, uid: rows_through}
            self.through = {**self.through, uid: max(answer.through, self.through.get(uid, 0))}

    def _opened(self, node: SinkNode, history: History, view: CheckpointView) -> Mark:
        """Open a sink, if it is not open yet, and ask it what it shows."""
        uid, context = node.uid, self._context
        name = f"{context.program.graph.name} ({context.checkpoint.job.identity})"
        writer = lane_writer_of(node, name)
        if writer is not None:
            if uid in self._lanes:
                self._lanes[uid].close()
            lanes = LanePublishing(context, node, writer, view, history)
            self._lanes, self._publishers = {**self._lanes, uid: lanes}, {**self._publishers, uid: lanes}
            return lanes.standing.newest
        if uid not in self._publishers:
            publisher = node.sink.publisher(name, uid)
            if isinstance(publisher, FilingPublisher):
                publisher.write_with(partial(lane_publisher_of, context, uid))
            self._publishers = {**self._publishers, uid: publisher}
        return self._asked(uid, self._publishers[uid], view)

    def begin(self) -> None:
        """Bind the sinks to this job, where it does not go on. Called before anything is planned, when the
        run can no longer be refused: a refused one leaves no trace in a sink that it was not to write to."""
        for uid in [uid for uid in self._nodes if uid not in self._unbound]:
            self.outages.awaited(uid, partial(self._bind, uid))

    def _bind(self, uid: str) -> None:
        """Bind a sink to this job, and have it show again what it has lost."""
        publisher, lanes, sink = self._publishers[uid], self._lanes.get(uid), self._nodes[uid].sink
        with _beginning(uid, self._storage_url if self._context.goes_on else ""):
            if self._context.goes_on and isinstance(sink, CheckedSink):
                sink.check()
            if lanes is not None:
                lanes.begin()
            elif isinstance(publisher, RememberingPublisher):
                publisher.begin(self.through[uid])
        if lanes is None:
            return
        for epoch, files in lanes.lost.items():
            with _named(uid, epoch, self._storage_url):
                lanes.publish(epoch, self._parts(files))
        lanes.lost = {}

    def _bind_late(self, uid: str) -> None:
        """By the thread of the sink. What a sink that refused says may be something else by the next try."""
        if uid in self._unasked:
            self._ask_late(uid)
        self._unasked.add(uid)
        self._bind(uid)
        self._unasked.discard(uid)
        self._unbound.discard(uid)

    def _ask_late(self, uid: str) -> None:
        """SinkFailed: it shows less than by its own word before, which no commit tells of. RestoreError: it
        shows what this checkpoint lacks, and plans were made without knowing it."""
        known = self.through[uid]
        # The chain of the run is read by the thread that commits.
        history = Chain(self._context.checkpoint.storage)
        with _beginning(uid, self._storage_url):
            answer = self._ask(self._nodes[uid], history, history.load())
        if answer.through < known:
            raise SinkFailed(
                f"sink {uid!r} went back while it refused the job, from epoch {known} to {answer.through}; "
                "all sinks are asked again"
            )
        if answer.mark.epoch > max(self._last_epoch, known) and not self._shared:
            raise RestoreError(
                f"sink {uid!r} shows epochs up to {answer.mark.epoch}, and this checkpoint ended with epoch "
                f"{self._last_epoch} when it was asked last: what those were made of is not known here; "
                "restore a newer copy of the checkpoint, or give the sink another uid"
            )
        self._go_by(uid, answer)

    def has_shown(self, uid: str, epoch: int) -> bool:
        """Whether a sink that is bound to the job shows all up to an epoch."""
        return uid not in self._unbound and self.through[uid] >= epoch

    def lost(self, uid: str) -> int:
        """How many epochs a sink has to show again."""
        return len(self._lanes[uid].lost) if uid in self._lanes else 0

    @property
    def keep_from(self) -> int | None:
        """The oldest commit that may name rows which a sink has to show again; None: there are none."""
        return self._retained_from if self._unbound else None

    def _tell(self) -> None:
        """Show which servers are waited for, before there is anything to show in them."""
        told = {
            uid: sink_told(
                self.through.get(uid, 0), self.outages.told(uid), None, self._monitor.latency.told(uid)
            )
            for uid in self._streams
        }
        self._monitor.update(sinks=told)

    def _asked(self, uid: str, publisher: Publisher, view: CheckpointView) -> Mark:
        if not isinstance(publisher, RememberingPublisher):
            return Mark(publisher.published_through())
        mark = publisher.mark()
        if mark is not None:
            self._refuse_left(uid, mark, view)
        recorded, rows_through = view.published_through.get(uid, 0), view.rows_through.get(uid, 0)
        if _keeps_rows(publisher):
            _refuse_lower(uid, 0 if mark is None else mark.epoch, rows_through)
        has_trace = mark is not None and mark.epoch >= rows_through
        if has_trace or uid not in view.published_through:
            return mark or Mark(0)
        waiting = self._waiting(view.staged, uid, recorded)
        if waiting:
            rows, last = sum(file.rows for file in waiting), waiting[-1].epoch
            raise RestoreError(
                f"sink {uid!r} has shown epochs up to {recorded} and has no trace of it where it writes now: "
                f"whether epochs {recorded + 1} to {last} ({rows} rows, committed) were shown where it wrote "
                "before cannot be told; start once with the former place, or put these rows aside with "
                f"`{set_aside_command(uid, self._storage_url)}`"
            )
        self._monitor.say(
            f"sink {uid!r} has shown epochs up to {recorded} and has no trace of it where it writes now "
            f"(emptied, or another place); no rows wait for it, and it goes on with epoch {recorded + 1}"
        )
        return Mark(0)

    def _refuse_left(self, uid: str, mark: Mark, view: CheckpointView) -> None:
        """Refuse a copy of the checkpoint that the job has left since: under the numbers of its epochs the
        sink shows other rows."""
        for file in view.staged:
            inputs = {mark.input, file.input}
            if file.epoch == mark.epoch and uid in file.sinks and "" not in inputs and len(inputs) > 1:
                raise RestoreError(
                    f"sink {uid!r} shows epoch {mark.epoch} made of other rows than this checkpoint has: the "
                    "job went on from another copy since; restore a newer copy of the checkpoint, or give "
                    "the sink another directory"
                )

    def _refuse_removed(self, view: CheckpointView) -> None:
        """Refuse to leave rows behind that were committed for a sink which the job does not have now."""
        for refusal in left_behind(view, self._streams, self._storage_url):
            raise RestoreError(refusal)
        # Format 2 names streams instead of sinks: one that no sink reads any more.
        through = min(view.published_through.values(), default=0)
        for file in view.staged:
            if not file.sinks and file.rows and file.epoch > through and not self.recipients(file):
                what = f"stream {file.stream!r}"
                raise RestoreError(_left_behind(what, [file], "UID", self._storage_url))

    def recipients(self, file: StagedFile) -> tuple[str, ...]:
        """The sinks that show a file."""
        return file.sinks or tuple(uid for uid, name in self._streams.items() if name == file.stream)

    def _waiting(self, staged: Iterable[StagedFile], uid: str, after: int) -> list[StagedFile]:
        return [file for file in staged if file.rows and file.epoch > after and uid in self.recipients(file)]

    def sinks(self, to: Recipients) -> list[str]:
        """The sinks that are meant."""
        return [
            uid
            for uid, dedupes in self._dedupes.items()
            if to is Recipients.ALL or dedupes is (to is Recipients.DEDUPING)
        ]

    def show(
        self,
        uid: str,
        first: int,
        last: int,
        staged: Iterable[StagedFile],
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        """Make epochs `first` to `last` visible in a sink: those that it has not shown already. `staged`: the
        rows for it. `is_over`: begin no more of them."""
        if uid in self._unbound:
            self._bind_late(uid)
        reached(Step.BEFORE_PUBLISH)
        by_epoch: dict[int, list[StagedFile]] = {}
        for file in staged:
            by_epoch.setdefault(file.epoch, []).append(file)
        assert first <= self.through[uid] + 1, f"epoch {first} of {uid} would come before those it lacks"
        for epoch in range(max(first, self.through[uid] + 1), last + 1):
            if is_over():
                return
            files = sorted(by_epoch.get(epoch, ()), key=lambda file: file.part)
            parts = self._parts(files)
            if self.showing(uid) is Showing.ONCE and not self._dedupes[uid]:
                parts = [replace(part, load=RowsOfPart(part.load)) for part in parts]
            try:
                with _named(uid, epoch, self._storage_url, self.showing(uid)):
                    self._show(uid, epoch, parts)
            except (DefinitionError, Unavailable):
                if any(isinstance(part.load, RowsOfPart) and part.load.taken for part in parts):
                    self._break_off(uid, epoch, sum(part.rows for part in parts))
                raise
            self._monitor.latency.shown(uid, epoch)
            self.outages.answered(uid)
            with self._lock:
                # Of a set of replicas another member may be further by now.
                if any(file.rows for file in files):
                    self.rows_through = {
                        **self.rows_through,
                        uid: max(epoch, self.rows_through.get(uid, 0)),
                    }
                self.through = {**self.through, uid: max(epoch, self.through[uid])}
            reached(Step.SINK_PUBLISHED)

    def showing(self, uid: str) -> Showing:
        """When a sink is shown an epoch."""
        if self._guarantee is Guarantee.AT_MOST_ONCE:
            return Showing.ONCE
        early = self._guarantee is Guarantee.AT_LEAST_ONCE and not self._dedupes[uid]
        return Showing.BEFORE_COMMIT if early else Showing.AFTER_COMMIT

    def _break_off(self, uid: str, epoch: int, rows: int) -> None:
        """Go on after an epoch that a sink may show a part of, and cannot say which."""
        self._monitor.say(
            f"LOST: sink {uid!r} broke off in epoch {epoch}, and cannot say which of its {rows} rows it "
            "shows: the others are lost, because none may be shown twice (at most once)"
        )
        with self._lock:
            self.broken_off[uid] = epoch
            self.through = {**self.through, uid: max(epoch, self.through[uid])}

    def _show(self, uid: str, epoch: int, parts: list[StagedPart]) -> None:
        """Show an epoch. What fails because another member of the set has shown it by then, and perhaps later
        ones, has not failed: by the word of the sink itself."""
        publisher = self._publishers[uid]
        try:
            if self._shared and _keeps_rows(publisher):
                # By itself it knows of nothing that only other members have shown.
                rows_through = self.rows_through[uid]
                _refuse_lower(uid, publisher.published_through(), rows_through)
            publisher.publish(epoch, parts)
        except (AssertionError, CorruptionError, DefinitionError, RestoreError):
            raise
        except Exception:
            if not self._shared or publisher.published_through() < epoch:
                raise

    def learn(self, through: Mapping[str, int], rows_through: Mapping[str, int]) -> None:
        """Another process has shown these epochs, in the same sinks."""
        with self._lock:
            self.rows_through = {
                uid: max(epoch, rows_through.get(uid, 0)) for uid, epoch in self.rows_through.items()
            }
            self.through = {uid: max(epoch, through.get(uid, 0)) for uid, epoch in self.through.items()}

    def leave(self, uid: str) -> None:
        """A sink does not come back from what it is doing: its own thread closes it if it ever does."""
        self._left.add(uid)

    def close_late(self, uid: str) -> None:
        """Close a sink that has come back after all. By its own thread."""
        self._publishers[uid].close()

    def close(self) -> None:
        """Close every sink but those that were left; raises the last failure after all were tried."""
        with contextlib.ExitStack() as closing:
            for uid, publisher in self._publishers.items():
                if uid not in self._left:
                    closing.callback(publisher.close)

    @property
    def lanes_through(self) -> LanesThrough:
        """What the lanes of each lane sink have shown. Read after `through`, it says no less than that."""
        return {uid: lanes.lanes_through for uid, lanes in self._lanes.items()}

    def _parts(self, files: Iterable[StagedFile]) -> list[StagedPart]:
        url = self._storage_url
        return [
            StagedPart(
                file.part, file.rows, partial(load_extent, url, file.extent), file.input, file.extent.length
            )
            for file in files
        ]


def _recorded(view: CheckpointView, uid: str) -> int:
    """The epoch up to which commits say that a sink is published. A new one begins with the next."""
    return view.published_through.get(uid, max(view.last_epoch, view.whole_after))


def _last_known(view: CheckpointView) -> int:
    """The newest epoch that any sink may show of what this checkpoint knows."""
    told = [*view.settled.through.values(), *view.published_through.values()]
    return max([view.last_epoch, view.whole_after, *told])


def _keeps_rows(publisher: Publisher) -> bool:
    return isinstance(publisher, KeepingPublisher) and publisher.keeps_rows


def _refuse_lower(uid: str, shown: int, rows_through: int) -> None:
    """Refuse to go on where the rows of some epochs would be missing from then on."""
    if shown < rows_through:
        found = f"it shows them up to epoch {shown}" if shown else "there is no trace of them"
        raise SinkWentBack(
            f"sink {uid!r} went back: it had shown rows up to epoch {rows_through}, and where it writes now "
            f"{found} (an older copy, one that was made again, or another place): rows of epochs {shown + 1} "
            f"to {rows_through} are not there; bring back a newer copy, or give the sink another uid: then "
            "it begins with the next epoch, without these"
        )


def sink_told(
    through: int,
    unavailable: dict[str, Any] | None,
    refused: dict[str, Any] | None,
    latency: dict[str, float | None] | None,
    epochs: int = 0,
    bytes: int = 0,
    full: bool = False,
) -> dict[str, Any]:
    """How a sink stands, as progress shows it. `unavailable`: its server is waited for; `refused`: a person
    is; `epochs`, `bytes`: what waits for it."""
    waits = {"through": through, "epochs": epochs, "bytes": bytes, "full": full}
    return {**waits, "unavailable": unavailable, "refused": refused, "latency": latency}


def _no_plan_needs(node: SinkNode, refusal: HoldfastError, context: LeaderContext) -> bool:
    """Whether what is planned is the same whatever a sink would say that refuses to be asked: it shows less
    than the commits say, or no more. What this machine lacks another one may have."""
    if isinstance(refusal, MachineError):
        return False
    no_more = context.asked or not node.sink.exactly_once
    return isinstance(refusal, SinkWentBack) or (isinstance(refusal, DefinitionError) and no_more)


@contextlib.contextmanager
def _beginning(uid: str, url: str) -> Iterator[None]:
    """Errors of a sink that cannot be bound to the job say which sink it was. `url`: of the checkpoint, where
    the job goes on meanwhile."""
    try:
        yield
    except DefinitionError as refused:
        kind = MachineError if isinstance(refused, MachineError) else DefinitionError
        again = f"; {tried_again(uid, url)}" if url else ""
        raise kind(f"sink {uid!r} cannot begin: {refused}{again}") from refused
    except (HoldfastError, AssertionError):
        raise
    except Exception as cause:
        raise SinkFailed(
            f"sink {uid!r} cannot begin ({type(cause).__name__}: {first_line(cause)}); it is tried again"
        ) from cause


@contextlib.contextmanager
def _named(uid: str, epoch: int, url: str, showing: Showing = Showing.AFTER_COMMIT) -> Iterator[None]:
    """Errors of a sink's own say which sink it was, and the way out if they come again and again."""
    try:
        yield
    except DefinitionError as refused:
        raise DefinitionError(showing.refused(uid, epoch, str(refused), url)) from refused
    except (HoldfastError, AssertionError):
        raise
    except Exception as cause:
        raise SinkFailed(
            f"sink {uid!r} did not show epoch {epoch} ({type(cause).__name__}: {first_line(cause)}); "
            f"{showing.failed(uid, url)}"
        ) from cause


def left_behind(view: CheckpointView, sinks: Collection[str], url: str) -> list[str]:
    """For each sink that is not among `sinks` and that committed rows wait for: what is wrong, and the ways
    out."""
    found = []
    for uid in view.published_through.keys() - set(sinks):
        shown = view.published_through[uid]
        waiting = [file for file in view.staged if file.rows and file.epoch > shown and uid in file.sinks]
        if waiting:
            found.append(_left_behind(f"sink {uid!r}", waiting, uid, url))
    return sorted(found)


def _left_behind(what: str, waiting: list[StagedFile], uid: str, url: str) -> str:
    rows, first, last = sum(file.rows for file in waiting), waiting[0].epoch, waiting[-1].epoch
    return (
        f"{rows} rows of epochs {first} to {last} were committed for {what} and are not known to be shown, "
        "and the job no longer has it; start the former job once and stop it, which shows them, or put them "
        f"aside with `{set_aside_command(uid, url)}`"
    )
