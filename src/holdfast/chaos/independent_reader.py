"""An operator's state, folded out of a checkpoint with the readers of the stored formats alone.

Per key group the newest whole snapshot, and the deltas since. The engine's own way to the state (lines,
working state) is not used on purpose: what it got wrong would be judged by itself.
Never here: anything that writes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from holdfast.checkpoint.chain.view import CheckpointView
from holdfast.checkpoint.store.records import DeltaFile, OperatorSchema, SnapshotFile
from holdfast.checkpoint.store.schemas import state_row
from holdfast.errors import HoldfastError, ObjectMissing
from holdfast.state.contract import EMPTY_VERSION, SnapshotSource, Version
from holdfast.state.encoding.layout import (
    TIME_AND_NUMBER,
    StateField,
    StateKind,
    StateLayout,
    in_time_index,
    is_shortened,
    map_entries,
)
from holdfast.state.encoding.ttl import TIME_BYTES, Instants, time_of
from holdfast.state.files.delta import read_delta, to_entries
from holdfast.state.local.snapshot_reader import read_snapshot
from holdfast.storage.checksums import checksum, read_extent
from holdfast.storage.contract import Storage

Values = dict[str, Any]
State = dict[tuple[Any, ...], Values]
"""Key columns -> state name -> value: the value, a list of items, or a dict of a map's entries. Of rows that
are kept by time and number, a list for each time."""
Range = tuple[int, int]


class Stand(NamedTuple):
    """Where the state of a key group stands, and of which shard's files that is known."""

    version: Version
    range: Range


def operator_state(storage: Storage, view: CheckpointView, uid: str) -> State:
    """The state of one operator at one commit, without what has expired by then. HoldfastError: it cannot be
    had from what is stored."""
    schema = next((operator for operator in view.operators if operator.uid == uid), None)
    if schema is None:
        return {}
    layout = _layout(schema)
    entries: dict[bytes, bytes] = {}
    at: dict[int, Stand] = {}
    for file in sorted(view.snapshots.get(uid, ()), key=lambda file: file.version.epoch, reverse=True):
        new = set(range(file.first_group, file.end_group)) - at.keys()
        if new and _is_whole(storage, file):
            found = _snapshot_entries(storage, file)
            entries.update((key, value) for key, value in found if _group(key) in new)
            at.update(dict.fromkeys(new, Stand(file.version, (file.first_group, file.end_group))))
    for delta in view.live_deltas(uid):
        groups = range(delta.first_group, delta.end_group)
        behind = {g for g in groups if g not in at or at[g].version.epoch < delta.version.epoch}
        if behind:
            _refuse_hole(uid, delta, [at[group] for group in behind if group in at])
            _apply(storage, layout, delta, behind, entries)
            at.update(dict.fromkeys(behind, Stand(delta.version, (delta.first_group, delta.end_group))))
    return _decoded(layout, entries, Instants(view.clock_ms * 1_000, view.watermarks.get(uid)))


def _refuse_hole(uid: str, delta: DeltaFile, stands: list[Stand]) -> None:
    """Every delta must follow what is there already. Across a rescaling only the epochs can tell."""
    follows = all(
        delta.parent == stand.version
        if stand.range == (delta.first_group, delta.end_group)
        else delta.parent.epoch >= stand.version.epoch
        for stand in stands
    )
    if not follows or (not stands and delta.parent != EMPTY_VERSION):
        raise HoldfastError(f"{uid}: {delta.version} follows {delta.parent}, and there is {stands[:1]}")


def _group(key: bytes) -> int:
    return int.from_bytes(key[:2], "big")


def _is_whole(storage: Storage, file: SnapshotFile) -> bool:
    try:
        data = storage.get(file.object)
    except ObjectMissing:
        return False
    chunks = range(0, len(data), file.chunk_bytes)
    return tuple(checksum(data[at : at + file.chunk_bytes]) for at in chunks) == file.chunks


def _snapshot_entries(storage: Storage, file: SnapshotFile) -> Iterator[tuple[bytes, bytes]]:
    path = storage.local_path(file.object)
    if path is None:
        raise HoldfastError(f"snapshot {file.object} is not on a disk; fetch the checkpoint to one")
    source = SnapshotSource(
        file.version,
        file.first_group,
        file.end_group,
        path,
        file.length,
        file.chunk_bytes,
        file.chunks,
        file.backend,
    )
    return read_snapshot(source, file.first_group, file.end_group)


def _apply(
    storage: Storage, layout: StateLayout, delta: DeltaFile, groups: set[int], entries: dict[bytes, bytes]
) -> None:
    data = read_extent(storage, delta.extent)
    for key, value in to_entries(layout, read_delta(layout, data, delta.extent.object)):
        if _group(key) not in groups:
            continue
        if value is None:
            entries.pop(key, None)
        else:
            entries[key] = value


def _decoded(layout: StateLayout, entries: dict[bytes, bytes], now: Instants) -> State:
    state: State = {}
    keys: dict[bytes, tuple[Any, ...]] = {}
    fields = {field.id: field for field in layout.fields}
    for entry, stored in sorted(entries.items()):
        if in_time_index(entry):
            continue
        length = layout.keys.base_length(entry)
        base, field = entry[:length], fields.get(entry[length])
        if field is None:
            continue  # the whole of a key that was too long for the entry
        tail = entry[length + 1 :]
        if field.ttl is not None:
            if field.kind is StateKind.LIST and not tail:
                continue  # the header of a list, whose items may all have expired
            if field.ttl.is_expired(time_of(stored), now.now(field.ttl)):
                continue
            stored = stored[TIME_BYTES:]
        if base not in keys:
            keys[base] = _key(layout, base)
        _put(state.setdefault(keys[base], {}), field, tail, stored)
    return state


def _key(layout: StateLayout, base: bytes) -> tuple[Any, ...]:
    if is_shortened(base):
        return (base.hex(),)
    return tuple(column[0].as_py() for column in layout.keys.decode([base], {}))


def _put(values: Values, field: StateField, tail: bytes, stored: bytes) -> None:
    if field.kind is StateKind.VALUE:
        values[field.name] = field.codec.decode_one(stored)
    elif field.kind is StateKind.LIST:
        items = values.setdefault(field.name, [])
        if tail:  # without one it is the header, which says how many there are
            items.append(field.codec.decode_one(stored))
    else:
        entry, found = map_entries(field, [(tail, stored)])
        name, value = entry[0].as_py(), field.codec.decode_one(found[0])
        if is_numbered(field):
            values.setdefault(field.name, {}).setdefault(repr(name["at"]), []).append(value)
        else:
            values.setdefault(field.name, {})[repr(name)] = value


def is_numbered(field: StateField) -> bool:
    """Whether a state may hold several rows of the same time of a key."""
    return field.kind is StateKind.TIMED and field.type.key_type == TIME_AND_NUMBER


def _layout(schema: OperatorSchema) -> StateLayout:
    return StateLayout.of_rows(schema.uid, schema.key, map(state_row, schema.states))
