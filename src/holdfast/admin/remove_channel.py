"""Giving up the rows of a channel that a job has no more, so that the part that sent them can go on.

    read what no part has read -> write it as Parquet, if asked to -> commit that the channel is gone

For a part that is not running. A channel that the job still has is left alone: the part that reads it would
go on behind a gap. Which it has says the job as it was started last, or as it is declared by now: its start
is refused, and changes nothing, as long as rows wait in a channel that it has no more.
Always true: other channels stay as they are; no row is given up before it is durable where the user wants it;
interrupted, it is done again and writes the same files.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from holdfast.admin.brief_term import brief_term, look_for_leader
from holdfast.admin.lost_epochs import LostEpochs, lost_epochs
from holdfast.admin.rows_aside import write_aside
from holdfast.checkpoint.chain.channels import Channel
from holdfast.checkpoint.chain.checkpoint import find_job, job_url, layouts, other_job, place_of_part
from holdfast.checkpoint.chain.commits import RETAIN_ALL, Adopted, Chain
from holdfast.checkpoint.chain.history import History
from holdfast.checkpoint.chain.view import EMPTY, CheckpointView, news
from holdfast.checkpoint.store.records import ChannelState, LayoutRecord, SentFile
from holdfast.clock import Clock
from holdfast.errors import RestoreError, RetryableError
from holdfast.runtime.parts.channel_source import Position, unread_files
from holdfast.storage.contract import Storage
from holdfast.storage.urls import open_storage


@dataclass(frozen=True)
class HeldChannel:
    """What a channel holds: `rows` that the part `reader` may still read, `unread` of them after its newest
    commit. `reader` is empty where it is not known: then all count as unread. `lost`: what was found damaged
    and is not there again; None: nothing."""

    channel: str
    reader: str
    through: int
    released: int
    rows: int
    unread: int
    lost: LostEpochs | None = None


@dataclass(frozen=True)
class RemovedChannel:
    """A channel that is gone, with rows that no part has read, and where they were written, if they were."""

    channel: str
    epochs: tuple[int, ...]
    rows: int
    place: str | None
    files: tuple[str, ...]


def held_channels(storage: Storage) -> list[HeldChannel]:
    """The channels that leave a part, by its newest commit."""
    found = []
    for uid, channel in sorted(History(storage).load().channels.items()):
        reader, unread, lost = _unread(storage, uid, channel)
        rows, waiting = (sum(file.rows for file in files) for files in (channel.files, unread))
        found.append(HeldChannel(uid, reader, channel.through, channel.released, rows, waiting, lost))
    return found


def removable(storage: Storage, uid: str, declared: LayoutRecord | None = None) -> HeldChannel:
    """The channel that is to be removed. `declared`: the job as it is now; None: as it was started last.
    RestoreError: the part has none of that uid, or the job has it."""
    known = {held.channel: held for held in held_channels(storage)}
    if uid not in known:
        names = ", ".join(known) or "none"
        raise RestoreError(f"no channel {uid!r} leaves the part in {storage.url}; it has {names}")
    started = next(_layouts(storage), None)
    if started is not None and declared is not None and started.job != declared.job:
        raise RestoreError(other_job(storage, started.job, declared.job))
    layout = declared or started
    if layout is not None and uid in layout.channels:
        remedy = "take it out of the job first" if declared else "name the job without it: --app FILE"
        raise RestoreError(
            f"job {layout.job!r} still has channel {uid!r}, to part {layout.channels[uid][1]!r}, which reads "
            f"its rows; {remedy}"
        )
    return known[uid]


def remove_channel(
    storage: Storage,
    uid: str,
    target: Storage | None,
    clock: Clock,
    *,
    declared: LayoutRecord | None = None,
    not_running: bool = False,
) -> RemovedChannel:
    """Give up what channel `uid` holds, and write what no part has read to `target` first, if that is given.
    `declared`: see `removable`. `not_running`: the caller knows that no leader is left."""
    leader = look_for_leader(storage, clock, "channels remove", not_running=not_running)
    if leader.answers:
        raise RestoreError("the part is running; stop it (holdfast stop), then remove the channel")
    removable(storage, uid, declared)
    with brief_term(storage, leader.newest, clock) as (term, run):
        # Read again under the term: a leader that came before it has committed, one that comes now fences us.
        removable(storage, uid, declared)
        # Which commits are given up is the job's decision.
        chain = Chain(storage, retain=RETAIN_ALL)
        view = chain.load()
        _, unread, _ = _unread(storage, uid, view.channels[uid])
        names = write_aside(storage, target, uid, unread) if target is not None else ()
        _commit(chain, view, uid, term, run)
    epochs = tuple(sorted({file.epoch for file in unread}))
    place = target.url if target is not None else None
    return RemovedChannel(uid, epochs, sum(file.rows for file in unread), place, names)


def _unread(storage: Storage, uid: str, channel: Channel) -> tuple[str, list[SentFile], LostEpochs | None]:
    """The part that reads the channel, or did (empty: not known), what it has not read, and what is lost."""
    reader = next((each.channels[uid][1] for each in _layouts(storage) if uid in each.channels), "")
    if not reader:
        return "", list(channel.files), None
    place = open_storage(place_of_part(job_url(storage.url) or "", reader))
    history = History(place)
    view = history.load() if find_job(place) is not None else EMPTY
    unread = unread_files(channel, Position.of(view.positions.get(uid)))
    return reader, unread, lost_epochs(uid, channel, history, view)


def _layouts(storage: Storage) -> Iterator[LayoutRecord]:
    """Of which parts the job consists that this part belongs to, newest first."""
    root = job_url(storage.url)
    return layouts(open_storage(root)) if root is not None else iter(())


def _commit(chain: Chain, view: CheckpointView, uid: str, term: int, run: str) -> None:
    # Without their times: a record names those that are new.
    channels = {
        other: ChannelState(through=channel.through, released=channel.released, kept=channel.kept)
        for other, channel in view.channels.items()
        if other != uid
    }
    record = news(
        view, term=term, run=run, published_through=view.published_through, channels=channels,
        ended=view.ended,
    )  # fmt: skip
    if isinstance(chain.commit(view, record), Adopted):
        raise RetryableError(
            "another leader has committed meanwhile; stop the part and look again with `holdfast channels "
            "list`; what was written aside is kept"
        )
