"""A job, its checkpoints and its requests as plain values, for the command line and the HTTP API alike.

Always true: all of it is read from storage, so it works with and without a leader. Nothing is written but the
question to the leader, which is removed again.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.admin.replica_standing import ask_members, one_of, set_plainly
from holdfast.checkpoint.chain.checkpoint import cluster_of, read_job
from holdfast.checkpoint.chain.history import History
from holdfast.checkpoint.chain.replica_sets import is_over
from holdfast.checkpoint.chain.terms import ending_of, newest_term
from holdfast.checkpoint.chain.view import EMPTY, CheckpointView
from holdfast.checkpoint.log.incidents import read_failures
from holdfast.checkpoint.log.requests import Asked
from holdfast.checkpoint.store.records import TermRecord
from holdfast.clock import Clock
from holdfast.errors import CorruptionError
from holdfast.runtime.control.request_client import asker, status_of_leader
from holdfast.storage.contract import Storage


def standing(storage: Storage, clock: Clock, seconds: float) -> dict[str, Any]:
    """How a job stands: its newest checkpoint, its failures, and its leader's word if that comes within
    `seconds` (`progress` is None where it does not). One that has `ended` in good order is not asked. Where a
    set of replicas leads, `replicas` tells of its members, and `progress` is that of one of them. `heard_ms`:
    of the newest sign of a process that storage knows; None: there never was one. `cluster`: the one whose
    nodes run it, if it is one. RestoreError: there is no checkpoint.
    """
    job = read_job(storage)
    leader = newest_term(storage)
    ended = ending_of(storage, leader.term) if leader is not None else None
    progress = replicas = None
    if leader is not None and leader.members:
        answers = {} if ended is not None else ask_members(storage, leader, clock, seconds)
        replicas = set_plainly(storage, leader, _view(storage), answers)
        progress = one_of(answers, replicas["lead"])
    elif leader is not None and ended is None:
        progress = status_of_leader(storage, clock, seconds, by=asker("holdfast status"))
    checkpoint, failures = _newest_plainly(storage), msgspec.to_builtins(read_failures(storage))
    return {
        "job": job.job,
        "identity": job.identity,
        "key_groups": job.key_groups,
        "created_ms": job.created_ms,
        "leader": msgspec.to_builtins(leader),
        "replicas": replicas,
        "cluster": msgspec.to_builtins(cluster_of(storage)),
        "ended": msgspec.to_builtins(ended),
        "progress": progress,
        "heard_ms": _heard_ms(leader, replicas, checkpoint, failures),
        "checkpoint": checkpoint,
        "failures": failures,
        "now_ms": clock.now_ms(),
    }


def word_of_run(storage: Storage, clock: Clock, seconds: float, *, by: str) -> dict[str, Any] | None:
    """Where the run stands, by its own word; of a set of replicas, by that of one member. None: it has ended,
    or nobody answers within `seconds`. Leaves nothing behind."""
    leader = newest_term(storage)
    if leader is None or is_over(storage, leader):
        return None
    if leader.members:
        return one_of(ask_members(storage, leader, clock, seconds), None)
    return status_of_leader(storage, clock, seconds, by=asker(by))


def _heard_ms(
    leader: TermRecord | None,
    replicas: dict[str, Any] | None,
    checkpoint: dict[str, Any],
    failures: list[dict[str, Any]],
) -> int | None:
    """When a process last left a sign in storage: a claim, a seat, an epoch that is committed, a failure."""
    if leader is None:
        return None
    joined: list[int] = (
        [each["joined_ms"] for each in replicas["members"] if each["process"]] if replicas else []
    )
    failed: list[int] = [each["at_ms"] for each in failures]
    committed: int = checkpoint.get("clock_ms", 0)
    return max(leader.claimed_ms, committed, *joined, *failed)


def _view(storage: Storage) -> CheckpointView:
    try:
        return History(storage).load()
    except CorruptionError:
        # It is told with the checkpoint.
        return EMPTY


def asked_plainly(asked: Asked) -> dict[str, Any]:
    """A request and what became of it."""
    request, answer = asked.request, asked.answer
    told: dict[str, Any] = {"request": asked.id, "state": str(asked.state)}
    if request is not None:
        told |= {
            "verb": request.verb,
            "arguments": request.arguments,
            "asked_by": request.asked_by,
            "asked_ms": request.asked_ms,
        }
    if answer is not None:
        told |= {"term": answer.term, "at_ms": answer.at_ms, "result": answer.result}
        told |= {"error": answer.error} if answer.error else {}
    return told


def commits_plainly(history: History) -> list[dict[str, Any]]:
    """The retained commits, newest first. CorruptionError where the newest cannot be read."""
    newest = history.load()
    told = []
    for number in range(newest.number, max(newest.retained_from, 1) - 1, -1):
        record = history.record(number)
        told.append(
            {
                "commit": number,
                "first_epoch": record.first_epoch,
                "last_epoch": record.last_epoch,
                "rows": record.rows,
                "term": record.term,
                "run": record.run,
                "clock_ms": record.clock_ms,
                "parallelism": record.parallelism,
                "published_through": record.published_through,
                "delta_bytes": sum(delta.extent.length for delta in record.deltas),
                "snapshots": len(record.snapshots),
                "rewind_to": record.rewind_to,
            }
        )
    return told


def _newest_plainly(storage: Storage) -> dict[str, Any]:
    try:
        view = History(storage).load()
    except CorruptionError as damage:
        return {"problem": str(damage)}
    return {
        "commit": view.number,
        "last_epoch": view.last_epoch,
        "rows": view.rows,
        "clock_ms": view.clock_ms,
        "parallelism": view.parallelism,
        "published_through": view.published_through,
        "retained_from": view.retained_from,
        "stored_bytes": _stored_bytes(view),
        "own_keys": {
            uid: {"unsaved": sum(each.unsaved for each in shards), "lost": sum(each.lost for each in shards)}
            for uid, shards in view.uncoordinated.items()
        },
        "watermarks": {uid: at // 1_000 for uid, at in view.watermarks.items()},
    }


def _stored_bytes(view: CheckpointView) -> int:
    """Of the newest snapshots, and of the deltas since the oldest snapshots that are kept."""
    newest = {
        (uid, file.first_group, file.end_group): file.length
        for uid, files in view.snapshots.items()
        for file in files
    }
    deltas = (delta.extent.length for uid in view.deltas for delta in view.live_deltas(uid))
    return sum(newest.values()) + sum(deltas)
