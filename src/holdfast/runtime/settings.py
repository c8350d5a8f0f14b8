"""How a job is to be run: the arguments of `run` and `start`, checked, as one frozen value."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Literal, TypedDict, TypeVar

from holdfast.clock import duration_ms
from holdfast.errors import DefinitionError
from holdfast.graph.guarantees import Guarantee
from holdfast.graph.protection import ActiveReplicas, Protection, Rollback, UpstreamBackup
from holdfast.runtime.restart_strategy import ExponentialDelay, RestartStrategy
from holdfast.state.local.backends import backend_named
from holdfast.state.local.directories import default_working_dir

EPOCH_TARGET_SECONDS = 1.0
"""What the adaptive epoch size aims at: small enough to be prompt, large enough to drown the fixed cost."""
E = TypeVar("E", bound=StrEnum)
POLL_SECONDS = 0.05
"""How long to wait before asking the sources again when nothing was new."""


class Until(StrEnum):
    """When a run ends by itself."""

    STOPPED = "stopped"
    EXHAUSTED = "exhausted"


class RunOptions(TypedDict, total=False):
    """What `run` and `start` can be told. Durations are texts such as '500ms', '5s' or '2m'."""

    guarantee: str
    """exactly-once (default), at-least-once or at-most-once."""
    checkpoint_interval: str | None
    """Least time between commits; None: every epoch is committed by itself."""
    epoch_interval: str | None
    """Least time between the starts of two epochs; None: as fast as it goes."""
    until: str
    """stopped (default), or exhausted: end when the sources have no more."""
    parallelism: int | Literal["auto"] | None
    """How many shards; 'auto': as many as there are cores, also when executors come and go; None: as
    before.
    """
    key_groups: int
    """128 unless given; fixed for the life of a checkpoint."""
    backend: str
    """lmdb (default), memory or rocksdb."""
    restart: RestartStrategy
    """What follows a failure. ExponentialDelay() unless given."""
    from_savepoint: str | Path | None
    """Where a new checkpoint takes its beginning from."""
    claim: bool
    """Whether the savepoint becomes this job's own: its sinks go on, its files are removed."""
    allow_dropped_state: bool
    """Whether stored state that the job no longer declares may be given up."""
    max_rows_per_epoch: int | None
    """None: found by itself."""
    target_latency: str | None
    """How long it may take from the arrival of a row until sinks show it, as far as the size of epochs
    decides that; None: epochs take about a second.
    """
    retain: int
    """How many commits can be gone back to."""
    barrier_interval: str | None
    """Of a job in parts: how often a barrier goes through all of them, to which the whole job can go back;
    None: only when a savepoint is taken.
    """
    stop_within: str
    """How long a run that is told to stop waits for sinks to show what is committed: '20s' unless given. What
    they have not shown then, the next start shows.
    """
    survive: int
    """How many nodes may end at once: a job that would not survive that is refused, with what it lacks. 0
    unless given.
    """
    working_dir: str | Path | None
    """Where working state is kept, when every executor runs on this machine."""


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """Checked settings of one run. Durations in seconds."""

    checkpoint: str
    guarantee: Guarantee
    until: Until
    checkpoint_interval: float
    epoch_interval: float
    parallelism: int | None
    autoscale: bool
    key_groups: int
    backend: str
    restart: RestartStrategy
    from_savepoint: str | None
    claim: bool
    allow_dropped_state: bool
    max_rows_per_epoch: int | None
    target_latency: float | None
    retain: int
    working_dir: str
    private_working_dir: bool
    """The default one, whose name can be guessed: it must be this user's alone."""
    barrier_interval: float = 0.0
    """Of a job in parts, in seconds; 0: none by itself."""
    stop_within: float = 20.0
    """How long a run that is told to stop waits for sinks."""
    survive: int = 0
    root: str = ""
    """Of a part: the checkpoint of the whole job. Empty: the job is not in parts."""
    protection: Protection = field(default_factory=Rollback)
    """Of a part."""
    seat: int = 1
    """Of a part that several run together: which of them this run is, from 1 on."""

    @property
    def saves_state(self) -> bool:
        """Whether the state of operators outlives the run."""
        return self.guarantee is not Guarantee.AT_MOST_ONCE

    @property
    def replicas(self) -> ActiveReplicas | None:
        """How many run the part together, and whether they vote; None: one alone runs it."""
        return self.protection if isinstance(self.protection, ActiveReplicas) else None

    @property
    def replays_state(self) -> bool:
        """Whether it does so in the input alone: no file holds it."""
        return isinstance(self.protection, UpstreamBackup)


def check_settings(checkpoint: str | Path, options: RunOptions) -> RunSettings:
    """Refuse settings that cannot be meant, all before Spark starts."""
    if unknown := sorted(options.keys() - RunOptions.__annotations__.keys()):
        known = ", ".join(sorted(RunOptions.__annotations__))
        raise DefinitionError(f"unknown option {unknown[0]!r}; the options are {known}")
    if not str(checkpoint):
        raise DefinitionError("no checkpoint was given; say where to keep it: run(checkpoint='ck/')")
    key_groups = options.get("key_groups", 128)
    if not 1 <= key_groups <= 32_768:
        raise DefinitionError(f"key_groups={key_groups} is out of range; choose a number from 1 to 32768")
    max_rows = options.get("max_rows_per_epoch")
    if max_rows is not None and max_rows < 1:
        raise DefinitionError(f"max_rows_per_epoch={max_rows} admits nothing; choose a number from 1 on")
    retain = options.get("retain", 10)
    if retain < 2:
        raise DefinitionError(f"retain={retain} keeps too little to go back to; choose a number from 2 on")
    savepoint = options.get("from_savepoint")
    if options.get("claim") and savepoint is None:
        raise DefinitionError("claim=True claims nothing; say which savepoint: from_savepoint='sp/'")
    survive = options.get("survive", 0)
    if survive < 0:
        raise DefinitionError(f"survive={survive} is no number of nodes; choose one from 0 on")
    parallelism = options.get("parallelism")
    chosen = options.get("working_dir") or os.environ.get("HOLDFAST_WORKING_DIR")
    return RunSettings(
        checkpoint=str(checkpoint),
        guarantee=_choice(Guarantee, "guarantee", options.get("guarantee", "exactly-once")),
        until=_choice(Until, "until", options.get("until", "stopped")),
        checkpoint_interval=_seconds(options.get("checkpoint_interval")),
        epoch_interval=_seconds(options.get("epoch_interval")),
        barrier_interval=_seconds(options.get("barrier_interval")),
        stop_within=_seconds(options.get("stop_within", "20s")),
        parallelism=None
        if parallelism is None or parallelism == "auto"
        else check_shards(parallelism, key_groups),
        autoscale=parallelism == "auto",
        key_groups=key_groups,
        backend=_backend(options.get("backend", "lmdb")),
        restart=options.get("restart", ExponentialDelay()),
        from_savepoint=None if savepoint is None else str(savepoint),
        claim=options.get("claim", False),
        allow_dropped_state=options.get("allow_dropped_state", False),
        max_rows_per_epoch=max_rows,
        target_latency=_target_latency(options),
        retain=retain,
        survive=survive,
        # Workers have other current directories than the driver.
        working_dir=str(Path(chosen or default_working_dir()).absolute()),
        private_working_dir=not chosen,
    )


def check_shards(parallelism: int, key_groups: int) -> int:
    """A number of shards that there are key groups for."""
    if not 1 <= parallelism <= key_groups:
        raise DefinitionError(
            f"parallelism={parallelism} is out of range; choose a number from 1 to key_groups ({key_groups})"
        )
    return parallelism


def _target_latency(options: RunOptions) -> float | None:
    """In seconds. DefinitionError: rows wait longer than that for the next epoch, or for its commit."""
    given = options.get("target_latency")
    if given is None:
        return None
    seconds = _seconds(given)
    if not seconds:
        raise DefinitionError(f"target_latency={given!r} is no time for anything; give one such as '2s'")
    for name, interval in (
        ("epoch_interval", options.get("epoch_interval")),
        ("checkpoint_interval", options.get("checkpoint_interval")),
    ):
        if seconds <= _seconds(interval):
            raise DefinitionError(
                f"target_latency={given!r} cannot be kept with {name}={interval!r}: rows wait for that "
                "before they are shown; give a longer target, or a shorter interval"
            )
    return seconds


def _backend(name: str) -> str:
    backend_named(name)
    return name


def _seconds(duration: str | None) -> float:
    return duration_ms(duration) / 1_000 if duration else 0.0


def _choice(kind: type[E], name: str, value: str) -> E:
    try:
        return kind(value)
    except ValueError:
        choices = ", ".join(repr(str(choice)) for choice in kind)
        raise DefinitionError(f"{name}={value!r} is not known; choose one of {choices}") from None
