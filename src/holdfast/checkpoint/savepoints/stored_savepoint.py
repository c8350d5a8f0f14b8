"""Savepoints in storage: reading, checking, listing and removing them.

A savepoint is a directory with a `savepoint` record and the objects that it names, all relative to the
directory: it may be moved or copied as a whole. `unfinished` says that its files are being written or
removed, `claimed` that a checkpoint has taken it over (see start_from).

Always true: a `savepoint` record is there only while all that it names is; what is not a savepoint is never
written to and never removed.
Never here: taking one (see take), starting from one (see start_from).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from holdfast.checkpoint.chain.checkpoint import refuse_parts
from holdfast.checkpoint.savepoints.copy import Copy, chunks_of, damage_in
from holdfast.checkpoint.store import names
from holdfast.checkpoint.store.envelope import R, seal, unseal
from holdfast.checkpoint.store.records import Extent, Manifest
from holdfast.checkpoint.store.savepoint_records import ClaimedRecord, SavepointRecord, UnfinishedRecord
from holdfast.checkpoint.store.write_once import write_once
from holdfast.errors import CorruptionError, HoldfastError, ObjectMissing, RestoreError
from holdfast.storage.contract import Entry, Storage

OBJECTS = (names.DATA, names.SNAPSHOTS)
"""What the objects of a savepoint are named by, as those of a checkpoint are."""

NAMED_MAX = 5
"""How many savepoints below a location an error names."""


@dataclass(frozen=True, slots=True)
class FoundSavepoint:
    """A savepoint as a listing finds it. `problem`: why no job can start from it; `record` may be None."""

    url: str
    record: SavepointRecord | None
    claimed: ClaimedRecord | None
    problem: str = ""


def read_savepoint(storage: Storage) -> SavepointRecord:
    """The savepoint in `storage`, all of whose objects are there in full size; their bytes are not read.

    RestoreError: there is none, it is unfinished or half-copied, or it is something else.
    """
    entries = storage.list("")
    record = find_savepoint(storage)
    if record is None:
        refuse_parts(storage)
        raise RestoreError(_why_none(storage, [entry.name for entry in entries]))
    lacking = lacking_in(record.manifest, entries)
    if lacking:
        raise RestoreError(
            f"half-copied savepoint: {storage.url} lacks {len(lacking)} of its "
            f"{len(objects_of(record.manifest))} objects ({lacking[0]}); copy it again, as a whole"
        )
    return record


def find_savepoint(storage: Storage) -> SavepointRecord | None:
    """The record alone, or None. CorruptionError where it is damaged."""
    record = _find(storage, "savepoint", SavepointRecord, names.SAVEPOINT)
    if record is not None:
        strange = [name for name in objects_of(record.manifest) if not is_ours(name)]
        if strange:
            raise CorruptionError(
                f"the savepoint in {storage.url} names {strange[0]!r}, which no savepoint does; "
                "restore its 'savepoint' record from a copy"
            )
    return record


def find_claim(storage: Storage) -> ClaimedRecord | None:
    """Who has taken the savepoint over, or None."""
    return _find(storage, "claimed", ClaimedRecord, names.CLAIMED)


def find_unfinished(storage: Storage) -> UnfinishedRecord | None:
    """Who began to write or to remove files here and has not come to the end, or None."""
    return _find(storage, "unfinished", UnfinishedRecord, names.UNFINISHED)


def size_of(record: SavepointRecord) -> int:
    """Bytes in the savepoint's objects."""
    return sum(extent.length for extents in objects_of(record.manifest).values() for extent in extents)


def verify_savepoint(storage: Storage) -> list[str]:
    """Read every byte and say what is damaged or missing, one line each; nothing: it is whole.

    RestoreError: there is no finished savepoint.
    """
    try:
        record = find_savepoint(storage)
    except CorruptionError as damage:
        return [str(damage)]
    entries = storage.list("")
    if record is None:
        raise RestoreError(_why_none(storage, [entry.name for entry in entries]))
    sizes = {entry.name: entry.size for entry in entries}
    problems = [
        f"object {file.object!r} in {storage.url} has {sizes[file.object]} bytes, not {file.length}; "
        "restore it from a copy"
        for file in record.manifest.snapshots
        if sizes.get(file.object, 0) > file.length
    ]
    copies = [Copy(name, tuple(extents)) for name, extents in objects_of(record.manifest).items()]
    return [*problems, *damage_in(storage, copies)]


def dispose_savepoint(storage: Storage, now_ms: int, *, force: bool = False) -> None:
    """Remove a savepoint, finished or not. Interrupted, it is called again.

    RestoreError: there is none; or, without `force`, a checkpoint has claimed it.
    """
    found = [entry.name for entry in storage.list("")]
    if names.SAVEPOINT not in found and names.UNFINISHED not in found:
        raise RestoreError(_why_none(storage, found))
    claimed = None if force else find_claim(storage)
    if claimed is not None:
        raise RestoreError(f"{refusal_of_claimed(storage, claimed)}; it removes it itself, or use --force")
    remove_all(storage, found, "", now_ms)


def remove_all(storage: Storage, found: Iterable[str], id: str = "", now_ms: int = 0) -> None:
    """Remove the records and objects of a savepoint, so that at no moment there is one that lacks objects.

    `found`: the names there. `id`: by what the half-removed savepoint is known, where it has no mark.
    """
    if names.UNFINISHED not in found:
        mark = UnfinishedRecord(id=id, job="", holder="removal", since_ms=now_ms)
        write_once(storage, names.UNFINISHED, seal("unfinished", mark))
    storage.delete([names.SAVEPOINT])
    storage.delete([name for name in found if is_ours(name) or name.startswith(names.LOGS)])
    storage.delete([names.CLAIMED])
    storage.delete([names.UNFINISHED])


def list_savepoints(storage: Storage) -> list[FoundSavepoint]:
    """Every savepoint in or below a location, by name; unfinished and damaged ones with their problem."""
    entries = storage.list("")
    homes: dict[str, set[str]] = {}
    for entry in entries:
        home, _, leaf = entry.name.rpartition("/")
        homes.setdefault(home, set()).add(leaf)
    return [
        _found(storage, home, entries)
        for home, leaves in sorted(homes.items())
        if names.SAVEPOINT in leaves or names.UNFINISHED in leaves
    ]


def objects_of(manifest: Manifest) -> dict[str, list[Extent]]:
    """Every object that a savepoint needs, with the stretches of it that have a checksum."""
    objects = {file.object: list(chunks_of(file)) for file in manifest.snapshots}
    packed = [*(file.extent for file in manifest.deltas), *(file.extent for file in manifest.lists)]
    packed += [extent for copy in manifest.tables.values() for extent in copy.extents]
    for extent in packed:
        objects.setdefault(extent.object, []).append(extent)
    return objects


def lacking_in(manifest: Manifest, entries: Iterable[Entry], below: str = "") -> list[str]:
    """What a listing lacks of the savepoint's objects, in words."""
    sizes = {entry.name.removeprefix(below): entry.size for entry in entries if entry.name.startswith(below)}
    lacking = []
    for name, extents in objects_of(manifest).items():
        needed = max((extent.offset + extent.length for extent in extents), default=0)
        if name not in sizes:
            lacking.append(f"{name} is missing")
        elif sizes[name] < needed:
            lacking.append(f"{name} has {sizes[name]} of {needed} bytes")
    return lacking


def refusal_of_claimed(storage: Storage, claimed: ClaimedRecord) -> str:
    """How a claimed savepoint is spoken of; the remedy is the caller's."""
    return (
        f"the savepoint in {storage.url} is claimed by job {claimed.job!r} "
        f"(checkpoint {claimed.checkpoint}), which owns it now"
    )


def _found(storage: Storage, home: str, entries: list[Entry]) -> FoundSavepoint:
    below = f"{home}/" if home else ""
    url = _within(storage.url, home)
    record, claimed, problem = None, None, ""
    try:
        record = _find(storage, "savepoint", SavepointRecord, f"{below}{names.SAVEPOINT}")
        claimed = _find(storage, "claimed", ClaimedRecord, f"{below}{names.CLAIMED}")
        if record is None:
            problem = "unfinished"
        elif lacking := lacking_in(record.manifest, entries, below):
            problem = f"half-copied: {lacking[0]}"
    except HoldfastError as damage:
        problem = str(damage)
    return FoundSavepoint(url, record, claimed, problem)


def _within(url: str, home: str) -> str:
    path, mark, query = url.partition("?")
    return f"{path}/{home}{mark}{query}" if home else url


def is_ours(name: str) -> bool:
    """Whether a name is one that an object of a savepoint may have."""
    return name.startswith(OBJECTS) and names.number_of(name) is not None


def _find(storage: Storage, kind: str, type: type[R], name: str) -> R | None:
    try:
        data = storage.get(name)
    except ObjectMissing:
        return None
    return unseal(kind, type, data, name)


def _why_none(storage: Storage, found: list[str]) -> str:
    """Why there is no savepoint in a location that holds these objects, and what to do."""
    if names.JOB in found:
        return (
            f"{storage.url} holds a checkpoint, not a savepoint; to go on from it, give it as the checkpoint "
            "and no savepoint; to begin another with its state, take a savepoint of its job while that runs "
            f"(`holdfast savepoint NEW_PLACE --checkpoint {storage.url}`) and start from that"
        )
    if names.UNFINISHED in found:
        return (
            f"the savepoint in {storage.url} is unfinished: it was never completed, or is being removed; "
            "use another, and remove this one with `holdfast savepoints dispose`"
        )
    if any(is_ours(name) for name in found):
        return (
            f"half-copied savepoint: {storage.url} holds objects of one, but not its 'savepoint' record; "
            "copy it again, as a whole"
        )
    below = sorted(
        name.removesuffix(f"/{names.SAVEPOINT}") for name in found if name.endswith(f"/{names.SAVEPOINT}")
    )
    if below:
        named = ", ".join(below[:NAMED_MAX]) + (", ..." if len(below) > NAMED_MAX else "")
        return (
            f"{storage.url} is no savepoint itself, it has {len(below)} below it ({named}); "
            f"name one of them, such as {_within(storage.url, below[-1])}"
        )
    what = f"it holds other things ({found[0]} is there)" if found else "it is empty or does not exist"
    return (
        f"there is no savepoint in {storage.url}: {what}; check the place, `holdfast savepoints list` "
        "shows the savepoints in and below one"
    )
