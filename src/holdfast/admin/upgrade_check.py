"""Rehearses an upgrade: whether this code can go on from that state, and what would change. For a job, or for
one part of it; all parts of one are in job_check.

Always true: it writes nothing. It reads records, asks sources and sinks what they are asked before Spark
starts, and sinks what they show where that changes nothing (see sinks_asked).
Never here: what fits what (see state.files.evolution); showing it (see cli.check).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from holdfast.admin.sinks_asked import Word, ask_sinks
from holdfast.checkpoint.chain.checkpoint import find_job, other_job, refuse_parts
from holdfast.checkpoint.chain.commits import Chain
from holdfast.checkpoint.chain.history import DamagedChain
from holdfast.checkpoint.chain.plans import Plans
from holdfast.checkpoint.chain.view import EMPTY, CheckpointView, from_manifest
from holdfast.checkpoint.savepoints.stored_savepoint import find_savepoint, read_savepoint
from holdfast.errors import DefinitionError, RestoreError
from holdfast.graph.fingerprint import fingerprint
from holdfast.graph.guarantees import Guarantee, check_guarantee
from holdfast.graph.job_graph import Graph
from holdfast.graph.parts import is_in_parts
from holdfast.graph.validate import check, check_places
from holdfast.ids import EpochId, epochs_told
from holdfast.runtime.doors.channel_source import doors_of
from holdfast.runtime.epoch.program import state_layouts
from holdfast.runtime.epoch.publisher import left_behind
from holdfast.runtime.epoch.recorded_plans import PlanShape, recorded_plans
from holdfast.runtime.epoch.schemas_in_force import declaration, examine
from holdfast.runtime.epoch.unfired_timers import unfired_timers
from holdfast.runtime.parts.outlets import refuse_unread
from holdfast.runtime.parts.part_jobs import part_jobs
from holdfast.storage.contract import Storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class Finding:
    """One thing of the job or of the stored state, and what becomes of it. `kind`: what it is, such as a
    source; `part`: which part of the job it is of, if that is in parts."""

    kind: str
    name: str
    what: str
    detail: str = ""
    part: str = ""


@dataclass(frozen=True)
class Rehearsal:
    """What would happen. With problems, `run` would refuse, for these reasons. `epoch`: the newest that is
    committed; None: each part has its own."""

    place: str
    job: str
    epoch: int | None
    findings: tuple[Finding, ...]
    problems: tuple[str, ...]
    is_new: bool = False
    """There is no checkpoint yet."""
    epochs: dict[str, int] = field(default_factory=dict)
    """Of a job in parts: part -> the newest epoch that it has committed."""
    unasked: tuple[str, ...] = ()
    """Sinks that a start asks what they show, and that were not asked here."""


@dataclass(frozen=True)
class Start:
    """How the job is going to be started: what `run` is told."""

    allow_dropped_state: bool = False
    guarantee: str = "exactly-once"
    parallelism: int | None = None


DEFAULT_START = Start()


@dataclass(frozen=True)
class _Origin:
    view: CheckpointView
    job: str
    chain: Chain | None
    """None: a savepoint, which has no plans; or there is nothing yet."""
    identity: str = ""
    """Of the checkpoint."""

    @property
    def is_new(self) -> bool:
        return self.chain is None and self.view is EMPTY


def rehearse(
    graph: Graph,
    storage: Storage,
    open_spark: Callable[[], SparkSession],
    start: Start = DEFAULT_START,
) -> Rehearsal:
    """Compare a job with the checkpoint or savepoint in `storage`. `open_spark` is called only if a transform
    lies before an operator: what columns it gives, Spark alone can tell.

    Where there is no checkpoint yet, everything is new. DefinitionError: the job is wrong in itself.
    RestoreError: what is there cannot be read.
    """
    check(graph)
    refuse_parts(storage)
    graph, part = _part_of(graph, _origin(storage), storage)
    return rehearse_part(graph, part, storage, open_spark, start)


def rehearse_part(
    graph: Graph, part: str, storage: Storage, open_spark: Callable[[], SparkSession], start: Start
) -> Rehearsal:
    """Compare a part of a checked job (empty: the job, which has none) with its own checkpoint."""
    found = _compared(graph, storage, open_spark, start)
    if not part:
        return found
    return replace(
        found,
        findings=tuple(replace(finding, part=part) for finding in found.findings),
        problems=tuple(f"part {part!r}: {problem}" for problem in found.problems),
    )


def _compared(
    graph: Graph, storage: Storage, open_spark: Callable[[], SparkSession], start: Start
) -> Rehearsal:
    origin = _origin(storage)
    view = origin.view
    if origin.chain is not None and origin.job != graph.name:
        # Before any comparison of state: to drop what does not fit would be no remedy.
        refusal = other_job(storage, origin.job, graph.name)
        return Rehearsal(storage.url, graph.name, view.last_epoch, findings=(), problems=(refusal,))
    layouts = state_layouts(graph, open_spark)
    declared = {node.uid: declaration(node, layouts[node.uid]) for node in graph.operators}
    in_force, problems = examine(declared, view.operators, start.allow_dropped_state)
    findings = [Finding("state", f"{uid}.{each.state}", str(each.what), each.detail)
                for uid, changes in in_force.changes.items() for each in changes]  # fmt: skip
    stored = {schema.uid for schema in view.operators}
    operators = [Finding("operator", uid, _of(uid in stored, uid in declared)) for uid in in_force.changes]
    problems += unfired_timers(graph, view, start.allow_dropped_state)
    settings, more = _settings(graph, origin, start)
    words: dict[str, Word] = {}
    if origin.chain is not None:
        words = ask_sinks(graph, origin.chain, view, origin.identity, start.guarantee)
    return Rehearsal(
        place=storage.url,
        job=graph.name,
        epoch=view.last_epoch,
        findings=(*_sources(graph, view), *operators, *findings, *_sinks(graph, view, words), *settings),
        problems=(
            *more,
            *_refused_places(graph),
            *problems,
            *left_behind(view, [node.uid for node in graph.sinks], storage.url),
            *(word.problem for word in words.values() if word.problem),
            *_unread(graph, view, storage, start.allow_dropped_state),
        ),
        unasked=tuple(uid for uid, word in words.items() if word.through is None and not word.problem),
        is_new=origin.is_new,
    )


def _part_of(graph: Graph, origin: _Origin, storage: Storage) -> tuple[Graph, str]:
    """The part whose checkpoint this is, and its name; the job, where that is not in parts or there is none
    yet."""
    if origin.is_new or not is_in_parts(graph):
        return graph, ""
    parts = part_jobs(graph, storage.url)
    found = next(((part.graph(), part.part) for part in parts if part.name == origin.job), None)
    if found is None and origin.chain is None:
        names = ", ".join(part.name for part in parts)
        raise RestoreError(
            f"the savepoint in {storage.url} is of {origin.job!r}, and the job has parts {names}; name that "
            "of one of these"
        )
    # A checkpoint of none of them is another job's: that is told where jobs are compared.
    return found or (graph, "")


def _refused_places(graph: Graph) -> list[str]:
    """What a source or a sink refuses before Spark is started."""
    try:
        check_places(graph)
    except DefinitionError as refusal:
        return [str(refusal)]
    return []


def _unread(graph: Graph, view: CheckpointView, storage: Storage, allow_dropped_state: bool) -> list[str]:
    """What the channels hold that the job has no more."""
    try:
        refuse_unread(view.channels, graph.outlets, storage.url, allow_dropped_state)
    except RestoreError as refusal:
        return [str(refusal)]
    return []


def _origin(storage: Storage) -> _Origin:
    if find_savepoint(storage) is not None:
        record = read_savepoint(storage)
        return _Origin(from_manifest(record.manifest, ""), record.job, None)
    owner, chain = find_job(storage), Chain(storage)
    if owner is None:
        return _Origin(EMPTY, "", None)
    try:
        return _Origin(chain.load(), owner.job, chain, owner.identity)
    except DamagedChain as damage:
        raise RestoreError(
            f"the newest checkpoint in {storage.url} is damaged ({'; '.join(damage.problems)}); "
            "`run` would go back to the newest one that verifies"
        ) from damage


def _of(before: bool, now: bool) -> str:
    return ("kept" if before else "added") if now else "dropped"


def _sources(graph: Graph, view: CheckpointView) -> Iterator[Finding]:
    uids = [node.uid for node in graph.sources]
    for uid in uids:
        if uid in view.positions:
            yield Finding("source", uid, "kept", f"goes on after {view.positions[uid]}")
        else:
            yield Finding("source", uid, "added", "read from its beginning")
    for uid in view.positions:
        if uid not in uids:
            yield Finding("source", uid, "dropped", "read no more; its position stays in the checkpoint")


def _sinks(graph: Graph, view: CheckpointView, words: Mapping[str, Word]) -> Iterator[Finding]:
    uids = [node.uid for node in graph.sinks]
    for uid in uids:
        shown = view.published_through.get(uid)
        if shown is None:
            yield Finding("sink", uid, "added", "begins with the next epoch")
        else:
            word = words.get(uid, Word(None))
            through = shown if word.through is None else word.through
            who = "by the newest commit" if word.through is None else "by its own word"
            told = f"shows epochs up to {through} of {view.last_epoch}, {who}"
            yield Finding("sink", uid, "kept", "; ".join(filter(None, (told, word.told))))
    for uid in view.published_through:
        if uid not in uids:
            yield Finding("sink", uid, "dropped", "shown nothing more")
    for uid in (node.uid for node in graph.doors):
        channel = view.channels.get(uid)
        if channel is None:
            yield Finding("sink", uid, "added", "a channel that begins with the next epoch")
        else:
            yield Finding("sink", uid, "kept", f"holds {epochs_told(channel.released + 1, channel.through)}")


def _settings(graph: Graph, origin: _Origin, start: Start) -> tuple[list[Finding], list[str]]:
    view, problems = origin.view, []
    try:
        check_guarantee(graph, Guarantee(start.guarantee))
    except ValueError:
        raise DefinitionError(
            f"guarantee={start.guarantee!r} is not known; see `holdfast guarantees`"
        ) from None
    except DefinitionError as refused:
        problems.append(str(refused))
    if origin.is_new:
        return [Finding("job", "guarantee", start.guarantee)], problems
    code = fingerprint(graph)
    shards = start.parallelism or view.parallelism
    scale = f"{view.parallelism} to {shards} shards" if shards != view.parallelism else f"{shards} shards"
    found = [
        Finding("job", "guarantee", start.guarantee),
        Finding("job", "parallelism", "kept" if shards == view.parallelism else "changed", scale),
        Finding("job", "code", "kept" if code == view.fingerprint else "changed", f"fingerprint {code[:12]}"),
    ]
    if origin.chain is not None:
        plans, trouble = _plans(graph, origin.chain, view, code, shards)
        found.append(plans)
        problems += trouble
    return found, problems


def _plans(
    graph: Graph, chain: Chain, view: CheckpointView, code: str, shards: int
) -> tuple[Finding, list[str]]:
    """What becomes of the plans that an earlier run wrote and did not commit."""
    shape = PlanShape(tuple(node.uid for node in graph.sources), code, shards)
    next_epoch = EpochId(view.last_epoch + 1)
    try:
        recorded = recorded_plans(chain, view, shape, shown={}, doors=doors_of(graph.sources))
        written = Plans(chain.storage).newest(next_epoch)
    except RestoreError as problem:
        return Finding("job", "plans", "refused"), [str(problem)]
    if written is None:
        return Finding("job", "plans", "none", f"epoch {next_epoch} is not planned yet"), []
    if not recorded:
        return Finding("job", "plans", "replanned", f"from epoch {next_epoch} on"), []
    obstacle = next((each.obstacle for each in recorded if each.obstacle), None)
    last = recorded[-1].plan.epoch
    if obstacle:
        detail = f"{epochs_told(next_epoch, last)}: the same rows are read in new attempts: {obstacle}"
        return Finding("job", "plans", "replanned", detail), []
    return Finding("job", "plans", "followed", epochs_told(next_epoch, last)), []
