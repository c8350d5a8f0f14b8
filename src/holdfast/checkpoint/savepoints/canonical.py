"""Making canonical savepoints of state that is handed in: converted, edited or new.

A canonical savepoint holds per operator and key-group range one delta from nothing, in the form of deltas:
any backend, any parallelism and any reader of Parquet can start from it.
Never here: encoding state (see state), or who hands it in (see engine).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import count
from typing import Literal

from msgspec.structs import replace

from holdfast.checkpoint.savepoints.take import begin_savepoint, removed_on_failure, seal_savepoint
from holdfast.checkpoint.store import names
from holdfast.checkpoint.store.records import (
    DeltaFile,
    Extent,
    ListFile,
    SavepointRecord,
    UnfinishedRecord,
    VersionRecord,
)
from holdfast.errors import DefinitionError
from holdfast.storage.checksums import checksum
from holdfast.storage.contract import Storage

FROM_NOTHING = VersionRecord(epoch=0, attempt=0, result="")


@dataclass(frozen=True, slots=True)
class WholeState:
    """All state of some key groups of an operator, as one delta from nothing. `data`: its bytes; empty where
    they are in storage already.
    """

    operator: str
    first_group: int
    end_group: int
    entries: int
    data: bytes = b""


def write_savepoint(
    target: Storage,
    draft: SavepointRecord,
    states: Iterable[WholeState],
    holder: str,
    lists: Iterable[tuple[ListFile, bytes]] = (),
) -> SavepointRecord:
    """Write a canonical savepoint of the state given, one object each, to `target`, which must be empty.

    `draft` says all but the files; a list comes with its bytes, and its extent is not looked at. Epoch 0 is
    the empty state's: `draft.manifest.last_epoch` is at least 1.
    """
    if draft.manifest.last_epoch < 1:
        raise DefinitionError("a savepoint with state needs an epoch to hold it; set last_epoch to 1 or more")
    begin_savepoint(
        target, UnfinishedRecord(id=draft.id, job=draft.job, holder=holder, since_ms=draft.created_ms)
    )
    numbers = count()

    def put(data: bytes) -> Extent:
        name = f"{names.data_of(draft.manifest.last_epoch)}{draft.id}-{next(numbers):04d}"
        target.put(name, data)
        return Extent(object=name, offset=0, length=len(data), checksum=checksum(data))

    with removed_on_failure(target):
        deltas = [whole_state_delta(draft, state, put(state.data)) for state in states]
        placed = [replace(file, extent=put(data)) for file, data in lists]
        return seal_savepoint(target, canonical(draft, deltas, placed))


def whole_state_delta(draft: SavepointRecord, state: WholeState, extent: Extent) -> DeltaFile:
    """How a canonical savepoint names the state of some key groups, wherever in it the bytes are."""
    return DeltaFile(
        operator=state.operator,
        first_group=state.first_group,
        end_group=state.end_group,
        version=VersionRecord(epoch=draft.manifest.last_epoch, attempt=0, result=draft.id),
        parent=FROM_NOTHING,
        extent=extent,
        entries=state.entries,
    )


def canonical(
    draft: SavepointRecord, deltas: Iterable[DeltaFile], lists: Iterable[ListFile] = ()
) -> SavepointRecord:
    """`draft` with these files and no others."""
    as_canonical: Literal["canonical"] = "canonical"
    manifest = replace(
        draft.manifest,
        deltas=tuple(deltas),
        lists=tuple(lists),
        snapshots=(),
        staged=(),
        published_through={},
        rows_through={},
        retained_from=1,
    )
    return replace(draft, format=as_canonical, manifest=manifest)
