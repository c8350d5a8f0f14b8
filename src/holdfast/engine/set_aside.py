"""Putting aside rows that a sink cannot show, so that what comes after them is not held up.

    read what waits for the sink -> write it as Parquet, one file per epoch -> commit that the sink is past it

For a job that is not running: a sink that refuses a committed epoch for good, or that the job no longer has.
Always true: no row is given up before it is durable in the place that the user named; interrupted, it is done
again and writes the same files. A leader that is there, or may be, is left alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.checkpoint.commits import Adopted, Chain
from holdfast.checkpoint.records import StagedFile
from holdfast.checkpoint.view import CheckpointView, news
from holdfast.clock import Clock
from holdfast.engine.caretaking import brief_term, look_for_leader
from holdfast.engine.staged import load_extent
from holdfast.errors import RestoreError, RetryableError
from holdfast.storage.contract import Storage


@dataclass(frozen=True)
class Standing:
    """How a sink stands: epochs up to `shown` are recorded as shown, `rows` of later epochs wait for it."""

    sink: str
    shown: int
    waiting_epochs: tuple[int, ...]
    rows: int


@dataclass(frozen=True)
class SetAside:
    """Rows that were put aside, and where."""

    sink: str
    epochs: tuple[int, ...]
    rows: int
    place: str
    files: tuple[str, ...]


def standings(view: CheckpointView) -> list[Standing]:
    """Every sink that the newest commit knows."""
    found = []
    for sink in sorted(view.published_through):
        files = _waiting(view, sink)
        epochs = tuple(sorted({file.epoch for file in files}))
        rows = sum(file.rows for file in files)
        found.append(Standing(sink, view.published_through[sink], epochs, rows))
    return found


def set_aside(
    storage: Storage,
    sink: str,
    place: Storage,
    clock: Clock,
    *,
    through: int | None = None,
    not_running: bool = False,
) -> SetAside:
    """Write the rows that wait for `sink`, of epochs up to `through` if given, to `place`, and let the job go
    on after them. `not_running`: the caller knows that no leader is left."""
    leader = look_for_leader(storage, clock, "sinks set-aside", not_running=not_running)
    if leader.answers:
        raise RestoreError("the job is running; stop it (holdfast stop), then put the rows aside")
    chain = Chain(storage)
    view = chain.load()
    if sink not in view.published_through:
        known = ", ".join(sorted(view.published_through)) or "none"
        raise RestoreError(f"the checkpoint knows no sink {sink!r}; it has {known}")
    last = view.last_epoch if through is None else min(through, view.last_epoch)
    files = [file for file in _waiting(view, sink) if file.epoch <= last]
    if not files:
        raise RestoreError(f"no rows wait for sink {sink!r}; start the job instead")
    names = tuple(
        _write(storage, place, sink, epoch, [file for file in files if file.epoch == epoch])
        for epoch in sorted({file.epoch for file in files})
    )
    with brief_term(storage, leader.newest, clock) as (term, run):
        _commit(chain, view, sink, last, term, run)
    epochs = tuple(sorted({file.epoch for file in files}))
    return SetAside(sink, epochs, sum(file.rows for file in files), place.url, names)


def _waiting(view: CheckpointView, sink: str) -> list[StagedFile]:
    """Records of format 2 do not name the sinks of their rows: those count for every sink."""
    shown = view.published_through[sink]
    return [
        file
        for file in view.staged
        if file.rows and file.epoch > shown and (not file.sinks or sink in file.sinks)
    ]


def _write(storage: Storage, place: Storage, sink: str, epoch: int, files: list[StagedFile]) -> str:
    name = f"{sink}-{epoch:012d}.parquet"
    tables = [load_extent(storage.url, file.extent) for file in sorted(files, key=lambda file: file.part)]
    out = pa.BufferOutputStream()
    pq.write_table(pa.concat_tables(tables), out)
    # Replaces what an interrupted try has left: the same committed rows.
    place.put(name, out.getvalue().to_pybytes())
    return name


def _commit(chain: Chain, view: CheckpointView, sink: str, last: int, term: int, run: str) -> None:
    record = news(view, term=term, run=run, published_through={**view.published_through, sink: last})
    if isinstance(chain.commit(view, record), Adopted):
        raise RetryableError(
            "another leader has committed meanwhile, and the rows may have been shown; stop the job and look "
            "again with `holdfast sinks list`; what was written aside is kept"
        )
