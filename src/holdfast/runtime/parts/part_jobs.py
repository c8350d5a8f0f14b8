"""The parts of a job, each to be run as a job of its own.

Always true: every part has its checkpoint below `parts/` of the job's, and what is there is of this job.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.checkpoint.chain.checkpoint import find_job, place_of_part, read_layout
from holdfast.checkpoint.chain.commits import Chain
from holdfast.checkpoint.chain.layout import keep_layout
from holdfast.checkpoint.store.records import LayoutRecord
from holdfast.errors import DefinitionError, RestoreError
from holdfast.graph.guarantees import Guarantee, check_guarantee
from holdfast.graph.job_graph import ChannelNode, Graph
from holdfast.graph.parts import PartGraph, homes_of, split
from holdfast.graph.protection import ActiveReplicas
from holdfast.graph.validate import check, check_places
from holdfast.runtime.control.run_flags import Wishes
from holdfast.runtime.driver import NOTHING, Prepared, takes_over
from holdfast.runtime.epoch.program import state_layouts
from holdfast.runtime.job_handle import JobHandle, launch
from holdfast.runtime.parts.channel_source import PartChannel
from holdfast.runtime.parts.removed_parts import refuse_gaps, refuse_left_rows
from holdfast.runtime.progress import Listener, Message
from holdfast.runtime.savepoints.run_savepoints import stored_view
from holdfast.runtime.settings import RunOptions, RunSettings, check_settings
from holdfast.runtime.stored_fit import refuse_misfit
from holdfast.storage.urls import open_storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class PartJob:
    """A part of a job, as whatever runs jobs takes it. `name`: of job and part; `part`: of the part alone;
    `before`: the names of those that it reads from; `other_parts`: of all others of its job."""

    def __init__(self, part: PartGraph, root: str, names: Sequence[str], seat: int = 1) -> None:
        """`names`: of all parts of the job. `seat`: of a part that several run together, which of them."""
        self.seat, self._names = seat, names
        self.name, self.part = part.graph.name, part.name
        job = part.graph.name.removesuffix(part.name)
        self.before = tuple(job + name for name in part.before)
        self.other_parts = tuple(job + name for name in names if name != part.name)
        self.checkpoint, self._root = place_of_part(root, part.name), root
        self.protection = part.protection
        self._part, self._graph = part, part.graph

    @property
    def seats(self) -> range:
        """Those of all that run it together."""
        members = self.protection.members if isinstance(self.protection, ActiveReplicas) else 1
        return range(1, members + 1)

    def parts_elsewhere(self) -> list[str]:
        """The names of parts that its job has by what is stored, and does not have here."""
        layout, job = read_layout(open_storage(self._root)), self.name.removesuffix(self.part)
        return [job + part for part in layout.parts if part not in self._names] if layout is not None else []

    def in_seat(self, seat: int) -> PartJob:
        """The same part, as one of those that run it together."""
        return PartJob(self._part, self._root, self._names, seat)

    def graph(self) -> Graph:
        return self._graph

    def start_as(
        self,
        wishes: Wishes,
        checkpoint: str | Path,
        spark: SparkSession | None,
        on_progress: Listener | None,
        on_message: Message,
        options: RunOptions,
        prepared: Prepared = NOTHING,
    ) -> JobHandle:
        """Run the part in a thread. Assumes a job that was checked."""
        settings = self._settings(checkpoint, options)
        storage = open_storage(settings.checkpoint)
        check_places(self._graph, lambda: takes_over(prepared, self._graph, storage, settings))
        return launch(self._graph, settings, wishes, spark, on_progress, on_message, prepared)

    def refuse_misfit(self, options: RunOptions, open_spark: Callable[[], SparkSession]) -> None:
        """RestoreError: what is stored of the part does not fit what the job declares now. Writes nothing."""
        settings, storage = self._settings(self.checkpoint, options), open_storage(self.checkpoint)
        if settings.from_savepoint is None and find_job(storage) is None:
            return

        def stored_columns(lookup: str) -> str | None:
            copy = stored_view(Chain(storage), self.name, settings).tables.get(lookup)
            return copy.columns if copy is not None else None

        layouts = state_layouts(self._graph, open_spark, stored_columns)
        refuse_misfit(self._graph, layouts, storage, settings)

    def _settings(self, checkpoint: str | Path, options: RunOptions) -> RunSettings:
        settings = replace(
            check_settings(checkpoint, options), root=self._root, protection=self.protection, seat=self.seat
        )
        if settings.from_savepoint is None:
            return settings
        return replace(settings, from_savepoint=place_of_part(settings.from_savepoint, self.part))


def part_jobs(graph: Graph, checkpoint: str) -> list[PartJob]:
    """The parts of a checked job, each after those that it reads from."""

    def inlet(channel: ChannelNode, before: str) -> PartChannel:
        return PartChannel(channel.uid, before, place_of_part(checkpoint, before))

    parts = split(graph, inlet, partial(place_of_part, checkpoint))
    return [PartJob(part, checkpoint, [each.name for each in parts]) for part in parts]


def checked_parts(graph: Graph, checkpoint: str, options: RunOptions) -> list[PartJob]:
    """The parts of a job that may run with these options. DefinitionError: it may not."""
    check(graph)
    settings = check_settings(checkpoint, options)
    if settings.guarantee is Guarantee.AT_MOST_ONCE:
        raise DefinitionError(
            "a job in parts cannot run at-most-once: a channel is what its checkpoints hold; choose "
            "exactly-once or at-least-once, or run it in one part"
        )
    if settings.claim:
        raise DefinitionError("the savepoint of a job in parts cannot be claimed; leave out claim")
    check_guarantee(graph, settings.guarantee)
    return part_jobs(graph, checkpoint)


def enter_checkpoint(
    graph: Graph, checkpoint: str, options: RunOptions, open_spark: Callable[[], SparkSession]
) -> None:
    """See that the checkpoint is this job's and knows its parts. RestoreError: it is not, it has a part that
    the job has no more, or rows of one, a part would read on behind a gap, or the job has other parts than it
    and what is stored of one does not fit: then nothing was written. `open_spark`: called where that cannot
    be told without Spark."""
    layout, settings = layout_of(graph), check_settings(checkpoint, options)
    if settings.from_savepoint is not None:
        refuse_other_parts(settings.from_savepoint, layout)

    def refuse_lost_rows() -> None:
        refuse_left_rows(checkpoint, layout.parts)
        refuse_gaps(checkpoint, layout.channels)

    def refuse() -> None:
        refuse_lost_rows()
        for part in part_jobs(graph, checkpoint):
            part.refuse_misfit(options, open_spark)

    keep_layout(open_storage(checkpoint), layout, settings.allow_dropped_state, refuse)
    refuse_lost_rows()


def layout_of(graph: Graph) -> LayoutRecord:
    """Of which parts a job consists."""
    homes = homes_of(graph)
    return LayoutRecord(
        job=graph.name,
        parts=tuple(dict.fromkeys(homes.values())),
        channels={each.uid: (homes[each.parent], homes[each]) for each in graph.channels},
        limits={each.uid: (each.limit_bytes, each.limit_epochs) for each in graph.channels},
    )


def refuse_other_parts(url: str, wanted: LayoutRecord) -> None:
    """A job begins with all parts of a savepoint, or with none."""
    found = read_layout(open_storage(url))
    if found is None:
        raise RestoreError(
            f"there is no savepoint of a job in parts in {url}, or it is not finished; check the place"
        )
    if (sorted(found.parts), found.channels) != (sorted(wanted.parts), wanted.channels):
        raise RestoreError(
            f"the savepoint in {url} has parts {', '.join(found.parts)} with channels "
            f"{', '.join(found.channels)}, and the job has parts {', '.join(wanted.parts)} with channels "
            f"{', '.join(wanted.channels)}; start the job as it was, and change its parts later"
        )
