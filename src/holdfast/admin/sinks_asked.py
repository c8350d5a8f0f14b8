"""What a start would ask the sinks of a job that does not run, asked before one: whether they go with its
checkpoint.

Always true: nothing is written, and nothing is asked while a run may live: to ask for marks waits for what
is being written, and may end it. Only lane sinks that the job had before are asked: theirs is a question that
changes nothing. To open any other sink may be its beginning, or the end of an epoch that was cut short.
Never here: what the marks mean (see runtime.epoch.lane_marks).
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.checkpoint.chain.commits import Chain
from holdfast.checkpoint.chain.replica_sets import runs_no_more
from holdfast.checkpoint.chain.view import CheckpointView
from holdfast.connectors.lane_publisher import LaneConnection
from holdfast.connectors.lanes import LaneWriter
from holdfast.errors import DefinitionError, RestoreError, Unavailable, one_line
from holdfast.graph.guarantees import Guarantee
from holdfast.graph.job_graph import Graph
from holdfast.runtime.epoch.lane_marks import LaneQuestion, standing
from holdfast.runtime.epoch.lane_sinks import lane_writer_of

NOBODY = 0
"""The term of who only looks: no older leader's writing is ended for that."""


@dataclass(frozen=True)
class Word:
    """What a sink says. `through`: the epoch up to which it shows all; None: it was not asked, or refused to
    say. `problem`: why a start would be refused. `told`: what else there is to tell a person."""

    through: int | None
    told: str = ""
    problem: str = ""


def ask_sinks(
    graph: Graph, chain: Chain, view: CheckpointView, identity: str, guarantee: str
) -> dict[str, Word]:
    """The word of each sink that remembers what it shows and that the job had before. `identity`: of the
    checkpoint."""
    job, replaces = f"{graph.name} ({identity})", guarantee != Guarantee.AT_MOST_ONCE
    idle, words = runs_no_more(chain.storage), dict[str, Word]()
    for node in graph.sinks:
        if not node.sink.exactly_once or node.uid not in view.published_through:
            continue
        writer = lane_writer_of(node, job)
        if writer is None:
            words[node.uid] = Word(None, "not asked: `run` alone does that")
        elif not idle:
            words[node.uid] = Word(None, "not asked: the job may run")
        else:
            words[node.uid] = _asked(node.uid, writer, view, chain, replaces=replaces)
    return words


def _asked(uid: str, writer: LaneWriter, view: CheckpointView, chain: Chain, *, replaces: bool) -> Word:
    lanes = LaneConnection(writer, NOBODY)
    try:
        found = standing(LaneQuestion(uid, lanes.marks(), view, chain, replaces), lambda: None)
    except Unavailable as away:
        return Word(None, f"its server is not there, which `run` waits for: {one_line(away)}")
    except (DefinitionError, RestoreError) as refusal:
        why = one_line(refusal)
        problem = why if repr(uid) in why else f"sink {uid!r}: {why}"
        return Word(None, "it does not go with the checkpoint", problem)
    finally:
        lanes.close()
    return Word(found.through, found.news)
