"""The records of what happens to a job and of what is asked of it: failures, failovers, its cluster, requests
and answers. As all records: see `records`."""

from __future__ import annotations

from holdfast.checkpoint.store.records import Json, Record


class FailureRecord(Record, frozen=True, kw_only=True):
    """`failures/N`: the run failed, and what was decided; or it was stopped after failures.

    `decision`: `restart` (after `delay_ms`), `give-up` or `stopped`. `cause` is the same text whenever the
    same thing happens again; `message` is the error as it was told.
    """

    at_ms: int
    term: int
    run: str
    host: str
    epoch: int
    kind: str
    cause: str
    message: str
    decision: str
    delay_ms: int = 0
    reason: str = ""
    poison: bool = False
    retried: int = 0
    """How often the job was tried again on this checkpoint so far, this time included, under any leader."""


class ClusterRecord(Record, frozen=True, kw_only=True):
    """`cluster/N`: the cluster whose nodes run the job on this checkpoint; the newest counts.

    `id` is the cluster's, from its ZooKeeper; `zookeeper` is where that was, for people.
    """

    cluster: str
    id: str
    zookeeper: str
    node: str
    at_ms: int


class FailoverRecord(Record, frozen=True, kw_only=True):
    """`failovers/N`: a node took the seat and committed for the first time, and how long that took.

    `reason`: why the seat was free. The phases follow one another: *detect*, from the last sign of life of
    the node before to the seat being won (None: no node held it before); *take over*, to the term being
    claimed; *restore*, to the first plan; *replay*, to the first new commit (None: it came to none).
    `arrivals`: how the shards of the first epoch came by their state (there, moved, rebuilt), and how many.
    """

    at_ms: int
    node: str
    host: str
    standby: str
    term: int
    before: str
    reason: str
    detect_ms: int | None = None
    take_over_ms: int = 0
    restore_ms: int = 0
    replay_ms: int | None = None
    commit: int = 0
    arrivals: dict[str, int] = {}


class RequestRecord(Record, frozen=True, kw_only=True):
    """`requests/<id>`: something is asked of the leader."""

    id: str
    verb: str
    arguments: dict[str, Json] = {}
    asked_by: str
    asked_ms: int
    expires_ms: int
    """A leader that finds it unclaimed after this refuses it: yesterday's stop is not wanted today."""


class AnswerRecord(Record, frozen=True, kw_only=True):
    """`answers/<id>/<step>`: what became of a request.

    Steps are `1-accepted` (a leader is there, but has other work first), `2-running` (claimed: no other may
    carry it out) and `3-ended`. `term` is 0 where the asker took the request back.
    """

    request: str
    state: str
    """accepted, running, done, refused (nothing was done) or failed."""
    term: int
    at_ms: int
    result: dict[str, Json] = {}
    error: str = ""
    process: str = ""
    """Of a set of replicas, whose members share a term: which of them wrote it."""
