"""Whether a job, or a part of one, can go on from what is stored in its checkpoint.

Asked before anything is written: a start that is refused leaves all as it was, and a leader that what is
stored does fit goes on.
Never here: what fits what (see state.files.evolution and what is called here).
"""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.checkpoint.chain.checkpoint import find_job, has_begun, refuse_other_key_groups
from holdfast.checkpoint.chain.commits import Chain
from holdfast.checkpoint.chain.view import EMPTY, CheckpointView
from holdfast.checkpoint.savepoints.start_from import refuse_unfit_savepoint
from holdfast.errors import RestoreError
from holdfast.graph.fingerprint import fingerprint
from holdfast.graph.job_graph import Graph
from holdfast.runtime.epoch.publisher import left_behind
from holdfast.runtime.epoch.schemas_in_force import declaration, examine, refuse_unsaved
from holdfast.runtime.epoch.unfired_timers import refuse_unfired
from holdfast.runtime.parts.outlets import refuse_unread
from holdfast.runtime.savepoints.run_savepoints import stored_view
from holdfast.runtime.settings import RunSettings
from holdfast.runtime.upstream import refuse_saved
from holdfast.state.encoding.layout import StateLayout
from holdfast.storage.contract import Storage
from holdfast.storage.urls import open_storage


def refuse_misfit(
    graph: Graph, layouts: Mapping[str, StateLayout], storage: Storage, settings: RunSettings
) -> CheckpointView:
    """RestoreError: what is stored does not fit. `layouts`: the state that each operator declares. Gives the
    view that was looked at, if the run can read on from it."""
    chain, allowed = Chain(storage), settings.allow_dropped_state
    stored = stored_view(chain, graph.name, settings)
    _refuse_other_key_groups(graph.name, storage, settings)
    declared = {
        node.uid: declaration(node, layouts[node.uid]) for node in graph.operators if node.uid in layouts
    }
    _, problems = examine(declared, stored.operators, allowed)
    if problems:
        raise RestoreError("\n".join(problems))
    refuse_unfired(graph, stored, allowed)
    for refusal in left_behind(stored, [node.uid for node in graph.sinks], storage.url):
        raise RestoreError(refusal)
    refuse_unread(stored.channels, graph.outlets, storage.url, allowed)
    refuse_unsaved(stored, settings)
    refuse_saved(graph, stored, settings)
    # Damage that was worked around is found again, and told, by the run.
    return EMPTY if chain.worked_around else stored


def is_of_same_code(graph: Graph, storage: Storage, settings: RunSettings) -> bool:
    """Whether this code ran the newest epoch that is committed here: its sinks have taken it."""
    if not has_begun(storage):
        # The sinks of the job whose savepoint it begins with are not these.
        return False
    return stored_view(Chain(storage), graph.name, settings).fingerprint == fingerprint(graph)


def _refuse_other_key_groups(job: str, storage: Storage, settings: RunSettings) -> None:
    if (existing := find_job(storage)) is not None:
        refuse_other_key_groups(storage, existing, settings.key_groups)
    if settings.from_savepoint is not None and not has_begun(storage):
        refuse_unfit_savepoint(
            open_storage(settings.from_savepoint), job, settings.key_groups, claim=settings.claim
        )
