"""The records that checkpoint storage holds, as frozen values.

Always true: a record is written once under its name and never changed; every file that a commit record
names was durable before the record was; a record read back equals the one written, or is refused.
Never here: reading, writing or deciding (see commits, plans, terms, retention).
"""

from __future__ import annotations

from typing import Any

import msgspec

FORMAT = 1
"""The version of every stored record. A reader refuses a newer one."""

Json = Any


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Base of all stored records."""


class JobRecord(Record, frozen=True, kw_only=True):
    """`job`: whose checkpoint this is. Written once, when the checkpoint is created."""

    job: str
    identity: str
    key_groups: int
    created_ms: int
    written_by: str


class TermRecord(Record, frozen=True, kw_only=True):
    """`terms/T`: who claimed to lead."""

    term: int
    run: str
    host: str
    pid: int
    claimed_ms: int


class Slice(Record, frozen=True, kw_only=True):
    """What an epoch reads of one source: `start` is out, `end` is in; `detail` is the source's own (a file
    list, say).
    """

    start: Json
    end: Json
    rows: int | None = None
    detail: Json = None
    notes: tuple[Json, ...] = ()
    skipped: bool = False
    """Somebody decided that these rows are given up: the epoch reads nothing of this source."""


class PlanRecord(Record, frozen=True, kw_only=True):
    """`plans/N/a`: everything that epoch N depends on. The same plan reads the same rows."""

    epoch: int
    attempt: int
    term: int
    run: str
    parent: int
    fingerprint: str
    parallelism: int
    clock_ms: int
    slices: dict[str, Slice]


class Extent(Record, frozen=True, kw_only=True):
    """Some bytes of an object in storage, with their checksum (XXH3, 128 bits, hex)."""

    object: str
    offset: int
    length: int
    checksum: str


class VersionRecord(Record, frozen=True, kw_only=True):
    """Which state this is: after which epoch, by which plan attempt, and which of the task results was
    chosen.
    """

    epoch: int
    attempt: int
    result: str


class DeltaFile(Record, frozen=True, kw_only=True):
    """The state changes of one shard in one epoch."""

    operator: str
    first_group: int
    end_group: int
    version: VersionRecord
    parent: VersionRecord
    extent: Extent
    entries: int


class SnapshotFile(Record, frozen=True, kw_only=True):
    """A shard's whole state, in the backend's own format.

    `chunks` holds one checksum per `chunk_bytes` of it.
    """

    operator: str
    first_group: int
    end_group: int
    version: VersionRecord
    object: str
    length: int
    chunk_bytes: int
    chunks: tuple[str, ...]
    backend: str


class StagedFile(Record, frozen=True, kw_only=True):
    """Output rows of one epoch, waiting to be published (an Arrow stream)."""

    stream: str
    epoch: int
    part: int
    extent: Extent
    rows: int


class StateSchema(Record, frozen=True, kw_only=True):
    """One declared state: `id` is its number in stored keys and never changes."""

    id: int
    name: str
    kind: str
    type: str


class OperatorSchema(Record, frozen=True, kw_only=True):
    """What an operator's stored state looks like."""

    uid: str
    key: tuple[tuple[str, str], ...]
    states: tuple[StateSchema, ...]


class Parent(Record, frozen=True, kw_only=True):
    """The commit record that this one follows, by number and checksum of its stored bytes."""

    number: int
    checksum: str


class CommitRecord(Record, frozen=True, kw_only=True):
    """`commits/C`: the only commit point. It exists or it does not.

    The chain fills in `number`, `parent`, `retained_from` and `manifest`; whoever drafts a record leaves
    them out. A record that covers no epoch (a rewind, news of snapshots) has `first_epoch = last_epoch +
    1`.
    """

    number: int = 0
    parent: Parent = Parent(number=0, checksum="")
    term: int
    run: str
    first_epoch: int
    last_epoch: int
    attempts: dict[str, int]
    """Plan attempt by epoch (as text: JSON keys)."""
    clock_ms: int
    parallelism: int
    fingerprint: str
    positions: dict[str, Json]
    """Source uid -> position after `last_epoch`."""
    notes: dict[str, tuple[Json, ...]] = {}
    """Source uid -> what the source must remember for ever (file names, say), added by these epochs."""
    deltas: tuple[DeltaFile, ...] = ()
    snapshots: tuple[SnapshotFile, ...] = ()
    staged: tuple[StagedFile, ...] = ()
    rows: int = 0
    published_through: dict[str, int] = {}
    """Sink uid -> epoch up to which it was published before this record was written.

    Names every sink of the job.
    """
    operators: tuple[OperatorSchema, ...] | None = None
    """Only in the first commit of a run: the state schemas in force from here on.

    State of other operators is dropped.
    """
    retained_from: int = 1
    """Commits below this number are given up: a later commit may delete what only they need."""
    manifest: str = ""
    """Name of the newest full manifest at or below this commit; empty: none yet."""
    rewind_to: int | None = None
    """History went back: state and positions of that commit hold again from here on."""


class Manifest(Record, frozen=True, kw_only=True):
    """`manifests/C-<checksum>`: the whole checkpoint as commit C finds it, so that reading never walks the
    whole chain.

    That is the checkpoint after commit C-1 or, where C is a rewind, after the commit that it goes back
    to.
    `deltas` and `staged` are the live ones; `snapshots` the newest and the one before it, per key group.
    Named by content too: two leaders may try different records under one number, and each needs its own
    manifest.
    """

    number: int
    parent: Parent
    term: int
    run: str
    positions: dict[str, Json]
    notes: dict[str, tuple[Json, ...]]
    last_epoch: int
    clock_ms: int
    parallelism: int
    fingerprint: str
    rows: int
    operators: tuple[OperatorSchema, ...]
    deltas: tuple[DeltaFile, ...]
    snapshots: tuple[SnapshotFile, ...]
    staged: tuple[StagedFile, ...]
    published_through: dict[str, int]
    retained_from: int


class FloorRecord(Record, frozen=True, kw_only=True):
    """`floor/F`: commit names up to and including F are used up for ever; records there mean nothing."""

    floor: int
    term: int
    run: str


class PinRecord(Record, frozen=True, kw_only=True):
    """`pins/<name>`: somebody reads commit `commit`; retention keeps all of it until the pin is removed."""

    name: str
    commit: int
    holder: str
    pinned_ms: int
