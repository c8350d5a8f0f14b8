"""The records that checkpoint storage holds, as frozen values.

Always true: a record is written once under its name and never changed; every file that a commit record
names was durable before the record was; a record read back equals the one written, or is refused.
Never here: reading, writing or deciding (see chain).
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.state.contract import NextDue, Version

FORMAT = 4
"""The version of every stored record. A reader refuses a newer one. 1 had no savepoints, lists, lineages of
schemas, requests or failures. 2 did not say for which sinks rows were staged. 3 knew no event time.
"""

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
    seeded_from: str = ""
    """The id of the savepoint that the checkpoint begins with; its commit 1 holds that state. Empty: none."""


class LayoutRecord(Record, frozen=True, kw_only=True):
    """`layout/N`: of which parts the job consists whose checkpoint this is. `channels`: uid -> the part that
    sends and the part that reads."""

    job: str
    parts: tuple[str, ...]
    channels: dict[str, tuple[str, str]] = {}
    limits: dict[str, tuple[int, int]] = {}
    """Channel uid -> how many bytes and epochs may wait in it before the part that sends stops."""


class TermRecord(Record, frozen=True, kw_only=True):
    """`terms/T`: who claimed to lead. Where `members` is not 0 it is a set of replicas that leads, under one
    term and one run, and this was the first of them."""

    term: int
    run: str
    host: str
    pid: int
    claimed_ms: int
    members: int = 0
    """How many members the set has; 0: it is no set."""
    vote: bool = False
    """A commit needs the votes of most members."""
    parallelism: int = 0
    fingerprint: str = ""
    """Of the code that the members run."""


class MemberRecord(Record, frozen=True, kw_only=True):
    """`members/T/SEAT-N`: who is the member of a set in a seat (the first is 1). The highest N counts."""

    term: int
    seat: int
    process: str
    host: str
    pid: int
    joined_ms: int
    left_ms: int = 0
    """When it left the set; 0: it has not, or could not say so."""


class DrainEndRecord(Record, frozen=True, kw_only=True):
    """`draining/T-end`: where the sources end for all members of the set of term T, which was asked to drain.
    The first member that has fixed it wrote this."""

    term: int
    seat: int
    epoch: int
    """The newest that was planned by then."""
    ends: dict[str, Json] = {}
    """Source uid -> its end, of those that can fix one."""
    rows: dict[str, int | None] = {}
    """Source uid -> rows left after that epoch, of the others. None: not counted, one slice is left."""


class VoteRecord(Record, frozen=True, kw_only=True):
    """`votes/EPOCH/T-SEAT-CONTENT`: what a member of the set of term T has come to, and would commit as
    `commit`."""

    epoch: int
    term: int
    seat: int
    commit: int
    content: str
    """Names the results of the epoch: equal results have equal names."""


class EndedRecord(Record, frozen=True, kw_only=True):
    """`ended/T`: the leader of term T has ended and writes no more. One that is killed leaves none.

    `ending`: `stopped` (it was told to), `exhausted` (the sources had no more), `failed`, or `unknown` (of a
    command that led for a moment, after a leader that left no record). `commit` and `last_epoch` are the
    newest then; `published`: whether every sink shows all epochs up to it.
    """

    term: int
    run: str
    at_ms: int
    ending: str
    commit: int
    last_epoch: int
    published: bool


class PlannedSlice(Record, frozen=True, kw_only=True):
    """What an epoch reads of one source: `start` is out, `end` is in; `detail` is the source's own (a file
    list, say).
    """

    start: Json
    end: Json
    rows: int | None = None
    detail: Json = None
    notes: tuple[Json, ...] = ()
    replaces_notes: bool = False
    """The notes take the place of all earlier ones of this source."""
    skipped: bool = False
    """A person decided that these rows are given up: the epoch reads nothing of this source."""
    given_up: tuple[str, ...] = ()
    """Files of which a person decided that: `detail` does not have them any more, `notes` still do."""


class PlannedWatermark(Record, frozen=True, kw_only=True):
    """How far event time is for one operator, in µs since 1970; None: not known. Rows of the epoch are judged
    by `before_us`; after them everything up to `now_us` is due."""

    before_us: int | None = None
    now_us: int | None = None


class PartitionTime(Record, frozen=True, kw_only=True):
    """The newest event time of a source, or of a partition of it, in µs since 1970 (None: none yet), and the
    time of the plan that last read rows of it."""

    newest_us: int | None
    seen_ms: int


class Extent(Record, frozen=True, kw_only=True):
    """Some bytes of an object in storage, with their checksum (XXH3, 128 bits, hex)."""

    object: str
    offset: int
    length: int
    checksum: str


class TableCopy(Record, frozen=True, kw_only=True):
    """The rows of a table that a stream is joined with, as they were when the plan of `epoch` was made at
    `read_ms`. Arrow streams, one after another; `columns` is their schema."""

    epoch: int
    read_ms: int
    columns: str
    rows: int
    extents: tuple[Extent, ...] = ()

    @property
    def objects(self) -> set[str]:
        return {extent.object for extent in self.extents}


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
    slices: dict[str, PlannedSlice]
    watermarks: dict[str, PlannedWatermark] = {}
    """Operator uid -> its watermark, where event time reaches it."""
    closing: bool = False
    """The input has ended: whatever goes by event time and is still open is due."""
    closed_through: int = 0
    """The newest epoch before this one that closed whatever was open; 0: none."""
    combined: tuple[str, ...] = ()
    """The uids of the operators whose rows are combined by key before they go to their shards."""
    after: str = ""
    """Names the positions of all sources before the epoch, where more than its rows follows from them: its
    event time, or that it has no rows. Empty: nothing does."""
    tables: dict[str, TableCopy] = {}
    """Lookup uid -> the copy of its table that the epoch is joined with."""


class DeltaFile(Record, frozen=True, kw_only=True):
    """The state changes of one shard in one epoch."""

    operator: str
    first_group: int
    end_group: int
    version: Version
    parent: Version
    extent: Extent
    entries: int
    next_due: NextDue | None = None
    """After these changes. None: not known, or the operator keeps no times."""


class TtlSchema(Record, frozen=True, kw_only=True):
    """How long the values of a state are kept, in ms, since they were last written or read (`since`), by the
    plan's clock or by the watermark (`clock`: `processing` or `event`)."""

    ms: int
    since: str
    clock: str


class StateSchema(Record, frozen=True, kw_only=True):
    """One declared state: `id` is its number in stored keys; it never changes and is never given again."""

    id: int
    name: str
    kind: str
    type: str
    fill: str = ""
    """What the struct fields that came with this schema hold in older values: a value of `type` as it is
    stored, in hexadecimal digits. Empty: null.
    """
    aggregates: dict[str, str] = {}
    """Of what `aggregate` keeps: field -> the aggregate that it belongs to, such as `max(amount)`. A field
    that is not here was written before this was kept: which it is, is not known.
    """
    ttl: TtlSchema | None = None
    """None: until it is removed by the user's code."""


class OperatorSchema(Record, frozen=True, kw_only=True):
    """What an operator's stored state looks like."""

    uid: str
    key: tuple[tuple[str, str], ...]
    states: tuple[StateSchema, ...]
    generation: int = 0
    """How often the schema was changed since the operator first had state."""
    before: OperatorSchema | None = None
    """The schema that this one took the place of. State is converted along these, step by step."""


class SnapshotFile(Record, frozen=True, kw_only=True):
    """A shard's whole state, in the backend's own format.

    `chunks` holds one checksum per `chunk_bytes` of it.
    """

    operator: str
    first_group: int
    end_group: int
    version: Version
    object: str
    length: int
    chunk_bytes: int
    chunks: tuple[str, ...]
    backend: str
    schema: OperatorSchema | None = None
    """Under which its bytes were written, without what came before. None, in files of the first Holdfast
    alone: the operator's first schema, of generation 0.
    """
    sole: bool = False
    """It came with a savepoint, which has no older deltas: nothing else can stand in for it."""


class StagedFile(Record, frozen=True, kw_only=True):
    """Output rows of one epoch, waiting to be published (an Arrow stream)."""

    stream: str
    epoch: int
    part: int
    extent: Extent
    rows: int
    sinks: tuple[str, ...] = ()
    """The uids of the sinks that are to show these rows, whatever the job looks like by then. Empty, in
    records of format 2 and older alone: the sinks of the stream of this name.
    """
    input: str = ""
    """Which slices the epoch read: `plans.input_of` its plan. Sinks keep it beside what they show."""


class SentFile(Record, frozen=True, kw_only=True):
    """Rows of one epoch in a channel (an Arrow stream). `part`: their place among those of the epoch."""

    channel: str
    epoch: int
    part: int
    extent: Extent
    rows: int


class ChannelState(Record, frozen=True, kw_only=True):
    """How far a channel is. Nothing of it ever goes back: what was once in a channel stays what it was."""

    through: int
    """The newest epoch that is in it."""
    released: int = 0
    """The epoch up to which its reader needs it no more."""
    times: tuple[tuple[int, int], ...] = ()
    """Epochs after which the event time of its rows is another one, with that time in µs since 1970: rows of
    later epochs are judged by it. In a commit record those that are new, in a manifest all that count."""
    kept: int = 0
    """How many of its newest epochs are kept, for readers that are not known here. 0: it has one reader,
    which says what it needs no more."""
    lost: tuple[int, ...] = ()
    """Epochs up to `through` that are computed again, since their rows are damaged. In a rewind those that
    are lost by it, in a manifest all."""
    answered: int = 0
    """The newest commit of its reader whose `asks` was seen to: the epoch is lost since then, or stays."""


class BarrierPlace(Record, frozen=True, kw_only=True):
    """Where in a part a barrier of the whole job fell: after `epoch`, in commit `commit`."""

    number: int
    commit: int
    epoch: int


class ListFile(Record, frozen=True, kw_only=True):
    """The whole list `state` of shard `shard` of an operator that ran with `shards` shards."""

    operator: str
    shards: int
    shard: int
    state: str
    extent: Extent
    items: int
    inherited: int = 0
    """How many items, from the first, came by union: shards that have any have the same ones."""


class UncoordinatedShard(Record, frozen=True, kw_only=True):
    """A shard of an operator whose keys are saved on their own, not here: which working copy it had, at which
    version, and how many events were in no save. Numbers of the last result that was chosen.
    """

    operator: str
    shards: int
    first_group: int
    end_group: int
    version: Version
    incarnation: str
    """Names the working copy: another one means that this one, with what was not saved of it, is gone."""
    unsaved: int
    discarded: int
    lost: int
    """Events lost so far, at most."""


class Parent(Record, frozen=True, kw_only=True):
    """The commit record that this one follows, by number and checksum of its stored bytes."""

    number: int
    checksum: str


class CommitRecord(Record, frozen=True, kw_only=True):
    """`commits/C`: the only commit point. It exists or it does not.

    The chain fills in `number`, `parent`, `retained_from` and `manifest`; a draft leaves them out. A record
    that covers no epoch (a rewind, news of snapshots) has `first_epoch = last_epoch + 1`.
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
    """Source uid -> what the source must remember (file names, say), added by these epochs."""
    notes_replaced: tuple[str, ...] = ()
    """Uids of sources whose `notes` here take the place of all earlier ones."""
    deltas: tuple[DeltaFile, ...] = ()
    snapshots: tuple[SnapshotFile, ...] = ()
    staged: tuple[StagedFile, ...] = ()
    rows: int = 0
    published_through: dict[str, int] = {}
    """Sink uid -> epoch up to which it was published before this record was written.

    Names every sink of the job.
    """
    rows_through: dict[str, int] = {}
    """Sink uid -> the newest epoch with rows that it had shown by then: a sink that remembers less is not
    where it wrote before, or has gone back."""
    lanes_through: dict[str, dict[str, tuple[int, int]]] = {}
    """Sink uid -> lane (as text) -> the newest epoch with rows that the lane had shown by then, and how many
    rows: of sinks that are written from tasks, and lanes that have had rows."""
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
    lists: tuple[ListFile, ...] = ()
    """Lists that these epochs changed; all of an operator's where its number of shards or its schema did."""
    # Stored under the name that was given first; everywhere else such keys are *uncoordinated*.
    own_keys: tuple[UncoordinatedShard, ...] = ()
    """Shards whose keys are saved on their own and that had rows in these epochs."""
    event_times: dict[str, dict[str, PartitionTime]] = {}
    """Source uid -> partition (empty: the source as a whole) -> how far its event time is after
    `last_epoch`."""
    watermarks: dict[str, int] = {}
    """Operator uid -> its watermark in `last_epoch`, in µs since 1970."""
    closed_through: int = 0
    """The newest epoch that closed whatever was open; 0: none of these did."""
    tables: dict[str, TableCopy] | None = None
    """Lookup uid -> the copy in use after `last_epoch`, of every lookup of the job. None: as before."""
    sent: tuple[SentFile, ...] = ()
    """What these epochs put into channels."""
    channels: dict[str, ChannelState] | None = None
    """Channel uid -> how far it is, of every channel that leaves this part. None: as before."""
    ended: bool = False
    """The part has read all of its input: its channels have come to their end, unless a later commit follows.
    """
    barrier: int = 0
    """The barrier of the whole job that falls after `last_epoch`; 0: none does."""
    seat: int = 0
    """Which member of a set of replicas wrote it; 0: none did."""
    staged_through: dict[str, int] = {}
    """Sink uid -> the newest epoch whose rows for it a commit has named, of every sink of the job: what is
    computed again up to there is not staged for it. Empty: as far as before, and of a commit with epochs
    at least through `last_epoch`. In a rewind, empty: none is kept."""
    needs_from: int = 0
    """The state is in no file: the first epoch whose rows it needs, to be had again; `last_epoch` + 1: none.
    0: state is in deltas and snapshots; in a record that covers no epoch: as before."""
    whole_after: int = 0
    """In a rewind for such state: it is that of this epoch again once this epoch has run. What the epochs up
    to it give out is in no sink or channel that does not have it. 0: as before."""
    lost_output: dict[str, tuple[int, ...]] = {}
    """In a rewind: sink uid -> epochs up to `staged_through` that are staged again, since the rows that were
    staged first are damaged."""
    asks: dict[str, int] = {}
    """Channel uid -> the epoch whose rows this part found damaged, and asks the part before for again. No
    commit has read anything of it, and none does until that is answered."""


class Manifest(Record, frozen=True, kw_only=True):
    """`manifests/C-<checksum>`: the whole checkpoint as commit C finds it, so that no reader walks the chain.

    That is the checkpoint after commit C-1 or, where C is a rewind, after the commit that it goes back to.
    `deltas` and `staged` are the live ones; `snapshots` the newest and the one before it, per key group.
    Named by content too: two leaders may try different records under one number, and each needs a manifest.
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
    rows_through: dict[str, int] = {}
    lanes_through: dict[str, dict[str, tuple[int, int]]] = {}
    retained_from: int
    lists: tuple[ListFile, ...] = ()
    own_keys: tuple[UncoordinatedShard, ...] = ()
    event_times: dict[str, dict[str, PartitionTime]] = {}
    watermarks: dict[str, int] = {}
    closed_through: int = 0
    tables: dict[str, TableCopy] = {}
    sent: tuple[SentFile, ...] = ()
    channels: dict[str, ChannelState] = {}
    barriers: tuple[BarrierPlace, ...] = ()
    staged_through: dict[str, int] = {}
    lost_output: dict[str, tuple[int, ...]] = {}
    asked: dict[str, tuple[int, int]] = {}
    """Channel uid -> the epoch that was asked for last, and the commit that did."""
    needs_from: int = 0
    whole_after: int = 0


class FloorRecord(Record, frozen=True, kw_only=True):
    """`floor/F`: commit names up to and including F are used up; records there mean nothing."""

    floor: int
    term: int
    run: str


class PinRecord(Record, frozen=True, kw_only=True):
    """`pins/<name>`: commit `commit` is being read; retention keeps all of it until the pin is removed."""

    name: str
    commit: int
    holder: str
    pinned_ms: int
    expires_ms: int = 0
    """From then on the pin is void: for holders that may die without removing it. 0: it is never void."""
