"""What the parts of an epoch are given by a leader, with no Spark and no term claimed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from holdfast.checkpoint.chain.checkpoint import open_checkpoint
from holdfast.checkpoint.chain.view import CheckpointView
from holdfast.checkpoint.store.records import StagedFile
from holdfast.clock import Clock, SystemClock
from holdfast.graph.job_graph import Place, SourceNode
from holdfast.runtime.control.run_flags import Wishes
from holdfast.runtime.epoch.lookups import Tables
from holdfast.runtime.epoch.planner import Planner
from holdfast.runtime.epoch.publisher import Publishing, Recipients
from holdfast.runtime.epoch.recorded_plans import PlanShape, Recorded, recorded_plans
from holdfast.runtime.leader_context import LeaderContext
from holdfast.runtime.progress import Listener, Monitor
from holdfast.runtime.settings import check_settings
from holdfast.storage.contract import Storage
from holdfast.storage.local_directory import LocalStorage

SHAPE = PlanShape(("rows",), "f", 2)


def leader_of(
    storage: Storage | None,
    *,
    sources: dict[str, Any] | None = None,
    sinks: dict[str, tuple[Any, str]] | None = None,
    clock: Clock | None = None,
    term: int = 1,
    run: str = "r",
    wishes: Wishes | None = None,
    listeners: Sequence[Listener] = (),
    say: Callable[[str], None] = lambda text: None,
    declared: Any = None,
) -> LeaderContext:
    """`sinks`: uid -> sink, and the stream that it shows now. Without storage: a named checkpoint.
    `declared`: the whole graph, in the place of what sources and sinks make up."""
    here, clock, sinks = Place(__file__, 1), clock or SystemClock(), sinks or {}
    graph = SimpleNamespace(
        nodes=(),
        operators=(),
        outlets=(),
        name="job",
        sources=tuple(SourceNode(uid=uid, source=each, place=here) for uid, each in (sources or {}).items()),
        sinks=tuple(SimpleNamespace(uid=uid, sink=sink) for uid, (sink, _) in sinks.items()),
    )
    program: Any = SimpleNamespace(
        graph=declared or graph, sinks={uid: stream for uid, (_, stream) in sinks.items()}
    )
    unused: Any = None
    named = SimpleNamespace(
        storage=SimpleNamespace(url="url"), job=SimpleNamespace(identity="id"), chain=unused
    )
    opened: Any = open_checkpoint(storage, "job", 4, clock, identity="id") if storage is not None else named
    return LeaderContext(
        program=program,
        settings=check_settings(opened.storage.url, {}),
        spark=unused,
        checkpoint=opened,
        term=term,
        run=run,
        clock=clock,
        monitor=Monitor("job", clock, list(listeners), [say]),
        wishes=wishes or Wishes(),
        recovery=unused,
        look_around=lambda: None,
    )


def show_in_all(
    publishing: Publishing,
    first: int,
    last: int,
    staged: Iterable[StagedFile] = (),
    to: Recipients = Recipients.ALL,
) -> None:
    """Show epochs in every sink that is meant, one sink after the other."""
    files = list(staged)
    for uid in publishing.sinks(to):
        ours = [file for file in files if uid in publishing.recipients(file)]
        publishing.show(uid, first, last, ours)


def planner_of(
    root: Path,
    sources: dict[str, Any] | None = None,
    clock: Clock | None = None,
    *,
    view: CheckpointView | None = None,
    recorded: Sequence[Recorded] | None = None,
    term: int = 1,
    run: str = "r",
    declared: Any = None,
    shape: PlanShape = SHAPE,
    tables: Tables | None = None,
) -> Planner:
    """A leader's planner over the plans that are there, or over these."""
    context = leader_of(
        LocalStorage(root), sources=sources, clock=clock, term=term, run=run, declared=declared
    )
    view = view or CheckpointView()
    found = recorded_plans(context.checkpoint.chain, view, shape, {})
    found = found if recorded is None else type(found)(recorded)
    return Planner(context, view, shape, found, tables or no_tables())


def no_tables() -> Tables:
    """Of a job without lookups."""
    unused: Any = None
    return Tables({}, {}, unused)
