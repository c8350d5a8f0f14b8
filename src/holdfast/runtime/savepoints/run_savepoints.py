"""Savepoints of a running job, and the start from one.

Always true: the job goes on while one is taken; what it is taken of is committed.
Never here: what a savepoint consists of (see checkpoint.savepoints.take), making others (see savepoint).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec.structs import asdict

from holdfast.checkpoint.chain.checkpoint import (
    Checkpoint,
    find_job,
    has_begun,
    open_checkpoint,
    refuse_other_job,
)
from holdfast.checkpoint.chain.commits import Chain
from holdfast.checkpoint.chain.history import DamagedChain
from holdfast.checkpoint.chain.view import EMPTY, CheckpointView, from_manifest
from holdfast.checkpoint.savepoints.start_from import finish_claim, open_seeded, seed_checkpoint
from holdfast.checkpoint.savepoints.stored_savepoint import read_savepoint
from holdfast.checkpoint.savepoints.take import take_savepoint
from holdfast.checkpoint.store.savepoint_records import SavepointRecord
from holdfast.clock import Clock
from holdfast.errors import DefinitionError, HoldfastError, RestoreError, RetryableError
from holdfast.runtime.progress import Monitor
from holdfast.runtime.savepoints.savepoint import Savepoint
from holdfast.runtime.settings import RunSettings
from holdfast.runtime.spark_session import run_in_background
from holdfast.storage.contract import Storage
from holdfast.storage.urls import open_storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BARRIER_SECONDS = 300.0
"""How long a savepoint waits for the epoch in hand to be committed."""
LOOK_SECONDS = 0.05


def stored_view(chain: Chain, job: str, settings: RunSettings) -> CheckpointView:
    """What a run of `job` with these settings would find stored; nothing where that cannot be said yet.

    RestoreError: the checkpoint is another job's. That comes before any question whether its state fits.
    """
    storage = chain.storage
    existing = find_job(storage)
    if existing is not None:
        refuse_other_job(storage, existing, job)
    if settings.from_savepoint is not None and not has_begun(storage):
        return from_manifest(read_savepoint(open_storage(settings.from_savepoint)).manifest, "")
    if existing is None:
        return EMPTY
    try:
        return chain.load()
    except DamagedChain:
        # Which commit the run goes back to, and what is stored there, is found by the run.
        return EMPTY


def open_run(storage: Storage, job: str, settings: RunSettings, run: str, clock: Clock) -> Checkpoint:
    """The checkpoint that a run goes on from, or creates; with a savepoint, `seed` follows."""
    if settings.from_savepoint is None:
        return open_checkpoint(storage, job, settings.key_groups, clock, identity=run, retain=settings.retain)
    return open_seeded(
        storage,
        open_storage(settings.from_savepoint),
        job,
        settings.key_groups,
        clock,
        identity=run,
        claim=settings.claim,
        retain=settings.retain,
    )


def seed(checkpoint: Checkpoint, settings: RunSettings, term: int, run: str, monitor: Monitor) -> None:
    """Let a new checkpoint begin with the savepoint that the settings name."""
    if settings.from_savepoint is None:
        return
    found = seed_checkpoint(checkpoint, open_storage(settings.from_savepoint), term=term, run=run)
    if found is not None:
        taken = f"savepoint {settings.from_savepoint} of job {found.job!r}, epoch {found.manifest.last_epoch}"
        monitor.say(f"beginning with {taken}")


class ClaimEnd:
    """Removes a claimed savepoint as soon as the job can do without it."""

    def __init__(self, checkpoint: Checkpoint, settings: RunSettings, say: Callable[[str], None]) -> None:
        self._checkpoint, self._say = checkpoint, say
        self._url = settings.from_savepoint if settings.claim else None

    def step(self, commit: int, now_ms: int) -> None:
        """Called now and then with the newest commit's number. What is wrong with the savepoint by now does
        not concern the job.
        """
        if self._url is None or commit < 2:
            return
        try:
            finish_claim(self._checkpoint, open_storage(self._url), now_ms)
        except RetryableError:
            return
        except HoldfastError as problem:
            self._say(f"the claimed savepoint {self._url} stays where it is: {problem}")
        self._url = None


def refuse_target(url: str) -> None:
    """Refuse a location where no savepoint can be left, before anything is stopped for it."""
    storage = open_storage(url)
    found = next(iter(storage.list("")), None)
    if found is not None:
        raise RestoreError(f"{storage.url} is not empty ({found.name} is there); choose an empty place")


def save(
    checkpoint: Checkpoint,
    spark: SparkSession,
    url: str,
    *,
    format: str,
    stopped_with: int | None,
    run: str,
    clock: Clock,
) -> SavepointRecord:
    """Take a savepoint of the newest commit; or of `stopped_with`, with which the job has ended."""
    refuse_target(url)
    take = partial(take_savepoint, checkpoint, id=uuid.uuid4().hex, clock=clock, holder=run)
    if format == "native":
        return take(stopped_with or None, open_storage(url), stopped=stopped_with is not None)
    if format != "canonical":
        raise DefinitionError(f"format={format!r} is not known; choose native or canonical")
    beside = sibling(url, ".native")
    take(None, open_storage(beside), stopped=False)
    native = Savepoint.open(beside)
    try:
        run_in_background(spark, f"holdfast-savepoint-{uuid.uuid4().hex}", f"holdfast savepoint to {url}")
        return native.convert(url, spark).record
    finally:
        native.dispose()


class TakenSavepoint(SavepointRecord, frozen=True, kw_only=True):
    """A savepoint that was taken while the job goes on. `waiting`: what sinks have still to show of what came
    before it, in words; empty if nothing."""

    waiting: str = ""


def taken_beside(record: SavepointRecord, sinks: Mapping[str, Mapping[str, Any]]) -> TakenSavepoint:
    """`sinks`: how they stand by now, as progress shows it."""
    left = {uid: record.manifest.last_epoch - told["through"] for uid, told in sinks.items()}
    return TakenSavepoint(**asdict(record), waiting=waiting_in_words(left))


def waiting_in_words(left: Mapping[str, int]) -> str:
    """`left`: of each sink, how many epochs up to a savepoint it has still to show."""
    waiting = {uid: epochs for uid, epochs in left.items() if epochs > 0}
    if not waiting:
        return ""
    sinks = ", ".join(
        f"{epochs} epoch{'s' * (epochs != 1)} for sink {uid!r}" for uid, epochs in waiting.items()
    )
    are = "is" if sum(waiting.values()) == 1 else "are"
    return (
        f"{sinks} {are} still to be shown and {are} not in it: before a job goes on from it, let this one "
        "show them (see `holdfast status`), or stop it with a savepoint"
    )


def sibling(url: str, suffix: str) -> str:
    """The location beside `url` whose name ends with `suffix`, with the same settings."""
    path, mark, settings = url.partition("?") if "://" in url else (url, "", "")
    return f"{path.rstrip('/')}{suffix}{mark}{settings}"


def await_commit(monitor: Monitor, epoch: int, clock: Clock) -> None:
    """Wait until `epoch` is committed."""
    give_up = clock.monotonic() + BARRIER_SECONDS
    while monitor.progress.committed_epoch < epoch:
        if monitor.progress.phase in ("stopped", "failed"):
            raise RetryableError(f"the run ended before epoch {epoch} was committed; start it again")
        if clock.monotonic() > give_up:
            raise RetryableError(f"epoch {epoch} was not committed in {BARRIER_SECONDS:.0f} s; try again")
        clock.sleep(LOOK_SECONDS)
