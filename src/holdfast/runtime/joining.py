"""How a member of a set of replicas comes to run, each time that it has loaded the checkpoint.

    joining -> running

A member is slow at first: Spark runs its first job, Python workers start, working state is restored. Should
its fellows end meanwhile, the output waits for that. So it is joining until it is warm and level with them.
Always true: a member that is said to run has run an epoch that is committed, by itself or by a fellow, or it
has warmed up and there is nothing to run. A process that leads alone runs at once.
Never here: what a set survives (see cluster.replica_seats).
"""

from __future__ import annotations

from contextlib import suppress

from holdfast.checkpoint.chain.view import CheckpointView
from holdfast.errors import HoldfastError, first_line
from holdfast.runtime.leader_context import LeaderContext
from holdfast.runtime.warm_up import warm_up

LEVEL_COMMITS = 1
"""A member is level when the set has come no further than so many commits beyond its own epoch."""
EPOCHS_MAX = 8
"""After so many epochs that brought it no nearer to the others a member runs, level or not: one that is as
fast as they are, and began behind them, stays behind."""
IDLE_SECONDS = 1.0
"""How long there must be nothing to run before a member warms up without rows. Where rows come all the time,
its first epoch is sooner."""


class Joining:
    """Made for one load of the checkpoint."""

    def __init__(self, context: LeaderContext, shards: int) -> None:
        self._context, self._shards = context, shards
        self._runs = context.replica is None
        self._epochs = 0
        """Those that were run here and are committed, since it was as near to the others as it has been."""
        self._behind: int | None = None
        """How many commits it was behind them then; None: it has run none."""
        self._idle_since: float | None = None
        self._warm: bool | None = None
        """Whether the warm-up without rows succeeded; None: there was none."""

    @property
    def phase(self) -> str:
        return "running" if self._runs else "joining"

    def ran(self, view: CheckpointView) -> None:
        """An epoch that was run here is committed as the last of `view`, whichever member was first."""
        if self._runs:
            return
        self._idle_since = None
        behind = self._commits_behind(view)
        if behind is None:
            return
        if self._behind is None or behind < self._behind:
            self._behind, self._epochs = behind, 0
        self._epochs += 1
        if self._epochs >= EPOCHS_MAX or behind <= LEVEL_COMMITS:
            self._run()

    def waits(self) -> None:
        """There is nothing to run, and all that was run is committed: after a while a member that no epoch
        has warmed warms up without rows, and where there still is nothing to run then it runs."""
        if self._runs:
            return
        now = self._context.clock.monotonic()
        if self._idle_since is None:
            self._idle_since = now
        if now - self._idle_since < IDLE_SECONDS:
            return
        if self._behind is not None or self._warm:
            self._run()
        elif self._warm is None:
            self._warm = self._warm_up()

    def _warm_up(self) -> bool:
        context = self._context
        try:
            warm_up(context.spark, context.program, context.settings, self._shards, rounds=1)
        except Exception as failure:
            context.monitor.say(f"this member is joining until it has run an epoch: {first_line(failure)}")
            return False
        return True

    def _commits_behind(self, view: CheckpointView) -> int | None:
        """How much further the set has come. None: storage does not say."""
        with suppress(HoldfastError):
            return max(self._context.checkpoint.chain.numbers(), default=view.number) - view.number
        return None

    def _run(self) -> None:
        self._runs = True
        self._context.monitor.update(phase=self.phase)
