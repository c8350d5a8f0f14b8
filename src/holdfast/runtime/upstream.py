"""State that is in no file (`hf.UpstreamBackup`), had again: go back with none, and read its rows again.

    newest commit -> the first epoch that its open state needs -> a commit before that -> a rewind, from which
    the epochs run again as they were; sinks and channels have what came of them, and are given nothing

Always true: nothing is given out before state is that of the newest commit again. Never here: which epoch
that is (see epoch.low_water and checkpoint.chain.low_water).
"""

from __future__ import annotations

from holdfast.checkpoint.chain.commits import Adopted
from holdfast.checkpoint.chain.low_water import lacks_state, refuse_without_base
from holdfast.checkpoint.chain.view import CheckpointView
from holdfast.errors import RestoreError
from holdfast.graph.job_graph import Graph
from holdfast.ids import CommitNumber
from holdfast.runtime.leader_context import AdoptedOther, LeaderContext
from holdfast.runtime.settings import RunSettings


def gone_back(context: LeaderContext, view: CheckpointView) -> CheckpointView:
    """The view to lead from: this one, or, where its state is in no file, one whose state is empty and from
    which its rows are read again. RestoreError: they were let go. AdoptedOther: another commit came first."""
    if not lacks_state(view):
        return view
    declared = {node.uid for node in context.program.graph.operators}
    if not any(schema.uid in declared for schema in view.operators):
        return view
    chain = context.checkpoint.chain
    base = refuse_without_base(chain, view, view.number, view.retained_from)
    whole_after = max(view.last_epoch, view.whole_after)
    context.monitor.say(
        f"REPLAY: what is open after epoch {view.last_epoch} is read again, from epoch {view.needs_from} on; "
        "sinks and channels keep what they have"
    )
    done = chain.rewind(
        view.head, CommitNumber(base), term=context.term, run=context.run, whole_after=whole_after
    )
    if isinstance(done, Adopted):
        raise AdoptedOther(f"commit {done.view.number} of term {done.view.term} came first; going on from it")
    return done.view


def begins(view: CheckpointView, settings: RunSettings) -> bool:
    """Whether no commit says yet that state is had again from its rows."""
    return settings.replays_state and (view.needs_from == 0 or lacks_state(view))


def refuse_saved(graph: Graph, view: CheckpointView, settings: RunSettings) -> None:
    """Refuse to read again what was saved so far: the rows that it is made of are gone. RestoreError."""
    uid = operator_of(graph) if settings.replays_state else None
    if uid is not None and (view.deltas.get(uid) or view.snapshots.get(uid)):
        raise RestoreError(
            f"the state of operator {uid!r} is in this checkpoint, and hf.UpstreamBackup() would start it "
            "from nothing; leave the protection of its part as it was, or give the operator another uid and "
            "allow dropped state"
        )


def operator_of(graph: Graph) -> str | None:
    """The only operator with state of a part that may be protected so; None: there is none."""
    return next((node.uid for node in graph.operators), None)
