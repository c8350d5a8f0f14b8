"""The records of savepoints, and of who claims them. As all records: see `records`."""

from __future__ import annotations

from typing import Literal

from holdfast.checkpoint.store.records import Manifest, Record


class SavepointRecord(Record, frozen=True, kw_only=True):
    """`savepoint` in a directory of its own: a whole checkpoint, every file of it under a name relative to
    the directory.

    Written last: without it there is no savepoint. `job`, `identity` and `commit` say what it was taken of.
    """

    id: str
    job: str
    identity: str
    key_groups: int
    commit: int
    created_ms: int
    written_by: str
    format: Literal["native", "canonical"]
    """native: the backend's snapshots, and deltas. canonical: only deltas, one per key-group range."""
    stopped: bool
    """The job was stopped with it and had published everything: a job that claims it goes on as that job."""
    manifest: Manifest
    """Without staged output, and without what sinks have shown."""


class UnfinishedRecord(Record, frozen=True, kw_only=True):
    """`unfinished` in a savepoint's directory: its files are being written, or removed.

    The first to be there and the last to go. Beside a `savepoint` record it means nothing.
    """

    id: str
    job: str
    holder: str
    since_ms: int


class ClaimedRecord(Record, frozen=True, kw_only=True):
    """`claimed` in a savepoint's directory: the checkpoint that took it over, and will remove it."""

    job: str
    checkpoint: str
    claimed_ms: int
    token: str = ""
    """As the checkpoint keeps it in its `claims/<id>`. Empty: from before there were tokens; job and url
    say whose claim it is."""


class ClaimRecord(Record, frozen=True, kw_only=True):
    """`claims/<id>`: the checkpoint is about to claim savepoint `savepoint`, or has. Job and url may read
    alike on two machines: the random `token` does not.
    """

    savepoint: str
    token: str
    at_ms: int
