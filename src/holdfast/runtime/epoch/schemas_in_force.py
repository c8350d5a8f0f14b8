"""The state schemas in force: what a checkpoint holds, brought together with what this code declares.

Always true: nothing is touched; what does not fit is told, all of it at once, before anything runs.
Never here: what fits what (see state.files.evolution).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from holdfast.checkpoint.chain.view import CheckpointView
from holdfast.checkpoint.store.records import OperatorSchema
from holdfast.checkpoint.store.schemas import file_schema, lineage_of, record_of
from holdfast.errors import RestoreError
from holdfast.graph.aggregates import ACCUMULATOR, Aggregation
from holdfast.graph.broadcast import BroadcastSide
from holdfast.graph.guarantees import Guarantee
from holdfast.graph.job_graph import OperatorNode
from holdfast.graph.time_joins import TimeJoin
from holdfast.graph.windows import EMISSIONS, Windowed
from holdfast.runtime.epoch.program import Program
from holdfast.runtime.settings import RunSettings
from holdfast.state.cells.declarations import ValueState, declared_states
from holdfast.state.encoding.layout import StateLayout
from holdfast.state.files.evolution import (
    Declared,
    Evolution,
    StateChange,
    What,
    evolve,
    lost_operators,
    shown,
)
from holdfast.state.files.schema_conversion import Lineage


@dataclass(frozen=True)
class InForce:
    """The schemas that a run goes on with."""

    records: tuple[OperatorSchema, ...]
    """For the first commit of the run."""
    lineages: dict[str, Lineage]
    """By operator: for its tasks."""
    changes: dict[str, tuple[StateChange, ...]]
    """By operator, those that are dropped included: what becomes of its states."""
    stored: frozenset[str] = frozenset()
    """The operators that the checkpoint holds state of."""

    @property
    def news(self) -> list[str]:
        """What changes for stored state, a line each."""
        return [
            f"state {each.state!r} of operator {uid!r} is {each.what}: {each.detail}"
            for uid, changes in self.changes.items()
            for each in changes
            if each.what is not What.KEPT and uid in self.stored
        ]

    def applied_to(self, program: Program) -> Program:
        """The program with layouts as they are stored."""
        forms = {
            uid: replace(form, layout=self.lineages[uid].layout, lineage=self.lineages[uid])
            for uid, form in program.forms.items()
        }
        return replace(program, forms=forms)

    def written_as(self, uid: str) -> OperatorSchema:
        """What new files of an operator are marked with."""
        return next(file_schema(record) for record in self.records if record.uid == uid)


def operator_schemas(
    program: Program, stored: tuple[OperatorSchema, ...], allow_dropped_state: bool = False
) -> InForce:
    """The schemas in force for this run; RestoreError, a line for each reason, when stored state does not fit
    what is declared.
    """
    declared = {
        node.uid: declaration(node, program.forms[node.uid].layout)
        for node in program.graph.nodes
        if isinstance(node, OperatorNode) and node.uid in program.forms
    }
    found, problems = examine(declared, stored, allow_dropped_state)
    if problems:
        raise RestoreError("\n".join(problems))
    return found


def refuse_unsaved(view: CheckpointView, settings: RunSettings) -> None:
    """Refuse a run that saves no state on top of saved state: it would be neither used nor kept up."""
    held = sorted({*view.deltas, *view.snapshots, *view.lists})
    if held and settings.guarantee is Guarantee.AT_MOST_ONCE and not settings.allow_dropped_state:
        raise RestoreError(
            f"the checkpoint holds state of operator {', '.join(map(repr, held))}, and at-most-once saves "
            "none: that state would be given up; keep the guarantee, choose another checkpoint, or allow "
            "dropped state"
        )


def examine(
    declared: Mapping[str, Declared], stored: tuple[OperatorSchema, ...], allow_dropped_state: bool
) -> tuple[InForce, list[str]]:
    """What `operator_schemas` decides by: the schemas, and the problems that forbid them."""
    kept = {schema.uid: schema for schema in stored}
    outcomes = {uid: _outcome(each, kept.get(uid), allow_dropped_state) for uid, each in declared.items()}
    problems = [problem for outcome in outcomes.values() for problem in outcome.problems]
    changes = {uid: outcome.changes for uid, outcome in outcomes.items()}
    lost = [uid for uid in kept if uid not in declared]
    if not allow_dropped_state:
        problems += lost_operators(lost)
    for uid in lost:
        changes[uid] = tuple(StateChange(state.name, What.DROPPED, state.type) for state in kept[uid].states)
    lineages = {uid: outcome.lineage for uid, outcome in outcomes.items()}
    records = tuple(record_of(lineage) for lineage in lineages.values())
    return InForce(records, lineages, changes, frozenset(kept)), problems


def declaration(node: OperatorNode, layout: StateLayout) -> Declared:
    """What an operator's function declares of its state."""
    if isinstance(node.function, Aggregation):
        return Declared(layout, aggregates={ACCUMULATOR: node.function.computed})
    if isinstance(node.function, Windowed):
        kept = {node.function.state: node.function.computed}
        # Which keys have early results due: what they are of is in the panes.
        return Declared(layout, aggregates=kept, dispensable=frozenset({EMISSIONS}))
    if isinstance(node.function, BroadcastSide):
        shared = node.function.states().items()
        return Declared(layout, was={name: state.was for name, state in shared if state.was})
    if isinstance(node.function, TimeJoin):
        return Declared(layout, aggregates=node.function.kept_of)
    states = declared_states(type(node.function))
    return Declared(
        layout,
        was={name: state.was for name, state in states.items() if state.was},
        defaults={name: state.default for name, state in states.items() if isinstance(state, ValueState)},
    )


def _outcome(declared: Declared, stored: OperatorSchema | None, allow_dropped_state: bool) -> Evolution:
    if stored is None:
        added = tuple(StateChange(f.name, What.ADDED, shown(f)) for f in declared.layout.fields)
        return Evolution(declared.begun, added)
    return evolve(lineage_of(stored), declared, allow_dropped_state)
