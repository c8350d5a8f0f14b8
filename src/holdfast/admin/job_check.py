"""Rehearses an upgrade of a whole job: of one in parts, every part against its own checkpoint.

Always true: it writes nothing; what is said of a part names it. What `run` would refuse of the parts
themselves (one that is gone, rows that wait in it, a channel that leads elsewhere) is told with the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from holdfast.admin.upgrade_check import DEFAULT_START, Finding, Rehearsal, Start, rehearse, rehearse_part
from holdfast.checkpoint.chain.checkpoint import find_job, read_layout
from holdfast.checkpoint.chain.layout import refuse_layout
from holdfast.checkpoint.savepoints.stored_savepoint import find_savepoint
from holdfast.checkpoint.store.records import LayoutRecord
from holdfast.errors import DefinitionError, RestoreError
from holdfast.graph.guarantees import Guarantee
from holdfast.graph.job_graph import Graph
from holdfast.graph.parts import is_in_parts
from holdfast.graph.validate import check
from holdfast.runtime.parts.part_jobs import checked_parts, layout_of, part_jobs, refuse_other_parts
from holdfast.runtime.parts.removed_parts import refuse_gaps, refuse_left_rows
from holdfast.storage.contract import Storage
from holdfast.storage.urls import open_storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def rehearse_job(
    graph: Graph,
    storage: Storage,
    open_spark: Callable[[], SparkSession],
    start: Start = DEFAULT_START,
) -> Rehearsal:
    """Compare a job, in parts or not, with what is in `storage`: see `rehearse`. Where that is the place of a
    whole job in parts, or there is nothing yet, all parts are compared."""
    check(graph)
    if not _is_of_all_parts(graph, storage):
        return rehearse(graph, storage, open_spark, start)
    layout, before = layout_of(graph), read_layout(storage)
    problems = list(_refused(graph, storage, layout, start))
    if find_job(storage) is not None or (before is not None and before.job != graph.name):
        # It is another's: nothing there is of these parts.
        return Rehearsal(storage.url, graph.name, None, findings=(), problems=tuple(problems))
    found = {
        part.part: rehearse_part(part.graph(), part.part, open_storage(part.checkpoint), open_spark, start)
        for part in part_jobs(graph, storage.url)
    }
    gone = [name for name in before.parts if name not in layout.parts] if before is not None else []
    dropped = [Finding("part", name, "dropped", part=name) for name in gone]
    return Rehearsal(
        place=storage.url,
        job=graph.name,
        epoch=None,
        findings=(*(finding for each in found.values() for finding in each.findings), *dropped),
        problems=(*problems, *(problem for each in found.values() for problem in each.problems)),
        is_new=all(each.is_new for each in found.values()),
        epochs={name: each.epoch or 0 for name, each in found.items()},
        unasked=tuple(uid for each in found.values() for uid in each.unasked),
    )


def _is_of_all_parts(graph: Graph, storage: Storage) -> bool:
    """Whether a job is in parts, and this is not the place of one of them."""
    if not is_in_parts(graph) or find_savepoint(storage) is not None:
        return False
    owner = find_job(storage)
    return owner is None or owner.job == graph.name


def _refused(graph: Graph, storage: Storage, layout: LayoutRecord, start: Start) -> Iterator[str]:
    """Why the parts cannot be run together so, whatever each of them says."""
    if start.guarantee == Guarantee.AT_MOST_ONCE:
        try:
            checked_parts(graph, storage.url, {"guarantee": start.guarantee})
        except DefinitionError as refusal:
            yield str(refusal)
    try:
        parts = part_jobs(graph, storage.url)
        if any(find_savepoint(open_storage(part.checkpoint)) is not None for part in parts):
            refuse_other_parts(storage.url, layout)
        else:
            refuse_layout(storage, layout, start.allow_dropped_state)
            refuse_left_rows(storage.url, layout.parts)
            refuse_gaps(storage.url, layout.channels)
    except RestoreError as refusal:
        yield str(refusal)
