"""What nodes write into ZooKeeper for one another, as JSON, and under which paths.

    /holdfast/NAME               the cluster (RegisteredCluster)
    /holdfast/NAME/nodes/N       a node that is there (NodeRecord), ephemeral
    /holdfast/NAME/seats/JOB     a seat
        holder                   the node that holds it (HolderRecord), ephemeral: the creator has won
        pulse                    the last sign of life of a holder (PulseRecord)
        wish                     the holder is to give it up (WishRecord)
        over                     the job is not to be run any more (OverRecord)

Always true: a reader passes over fields that it does not know, so nodes of two versions understand each
other. Nothing here decides about data: what a record says is for choosing and for telling.
"""

from __future__ import annotations

import re
from typing import TypeVar

import msgspec

from holdfast.errors import CorruptionError, DefinitionError, one_line
from holdfast.storage.typed_json import from_json

ROOT = "/holdfast"
RecordT = TypeVar("RecordT", bound="Record")


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Base of all records in ZooKeeper."""


class RegisteredCluster(Record, frozen=True, kw_only=True):
    """The cluster. `id` is written into every checkpoint that it holds."""

    id: str
    since_ms: int


class Lag(Record, frozen=True, kw_only=True):
    """How far a hot standby's working state is behind the newest commit that it knows of.

    `epoch`: where it stands; `epochs` were committed since, and the oldest of them has been known for `ms`.
    `problem`: what keeps it from following; empty: nothing does.
    """

    epoch: int
    epochs: int = 0
    ms: int = 0
    problem: str = ""


class Unfit(Record, frozen=True, kw_only=True):
    """A job failed on a node, for a reason that another node may not have; `commit` was the newest then."""

    error: str
    at_ms: int
    commit: int = 0


class NodeRecord(Record, frozen=True, kw_only=True):
    """A node that is there. `code`: per job that it would run, a short name for each part of it. `lag`: per
    job that it follows; written again about once a second while it changes. `unfit`: the jobs that it does
    not try again until another node has brought them further.
    """

    name: str
    instance: str
    host: str
    pid: int
    since_ms: int
    standby: str
    code: dict[str, dict[str, str]]
    lag: dict[str, Lag] = {}
    unfit: dict[str, Unfit] = {}


class HolderRecord(Record, frozen=True, kw_only=True):
    """Which node holds a seat, with which code, and where the checkpoint is."""

    node: str
    instance: str
    since_ms: int
    checkpoint: str
    code: dict[str, str]


class PulseRecord(Record, frozen=True, kw_only=True):
    """The holder's last sign of life. Outlives the holder; `ended` says why it left. `phase`: of its run (see
    runtime.progress). `beat_ms`: how often it gives one; 0: not known.
    """

    node: str
    instance: str
    term: int = 0
    phase: str = ""
    epoch: int = 0
    commit: int = 0
    ended: str = ""
    beat_ms: int = 0


class WishRecord(Record, frozen=True, kw_only=True):
    """The holder `giver` is to give the seat up, to `to` if that is not empty."""

    giver: str
    to: str
    by: str
    at_ms: int


class OverRecord(Record, frozen=True, kw_only=True):
    """The job is not to be run any more. `state`: finished, stopped or failed."""

    state: str
    node: str
    at_ms: int
    error: str = ""


def written(record: Record) -> bytes:
    return msgspec.json.encode(record)


def read(kind: type[RecordT], data: bytes, path: str) -> RecordT:
    try:
        return from_json(data, kind)
    except msgspec.DecodeError as cause:
        raise CorruptionError(
            f"{path} in ZooKeeper holds no {kind.__name__} ({cause}); remove it if nobody else uses the path"
        ) from cause


def in_short(failure: BaseException, chars: int = 500) -> str:
    """An error as one line of a record, never empty."""
    return one_line(failure)[:chars]


def checked_name(what: str, name: str) -> str:
    """A name that can be part of a path."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,99}", name):
        raise DefinitionError(
            f"the {what} name {name!r} cannot be used; take letters, digits and . _ @ -, 100 at most"
        )
    return name
