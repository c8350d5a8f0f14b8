"""What a leader leads with: the one value that all parts of its epochs are given.

a start       driver: does the stored state fit? -> claim a term -> recovery: the newest view
leading       epoch_loop: ask the sinks -> recorded plans -> publish what is committed and not shown
an epoch      planner -> runner -> committer -> publisher, and the snapshotter beside them
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.checkpoint.chain.checkpoint import Checkpoint
from holdfast.checkpoint.chain.terms import refuse_if_superseded
from holdfast.clock import Clock
from holdfast.errors import HoldfastError
from holdfast.runtime.control.run_flags import Wishes
from holdfast.runtime.epoch.program import Program
from holdfast.runtime.progress import Monitor
from holdfast.runtime.recovery import Recovery
from holdfast.runtime.replica import Replica
from holdfast.runtime.settings import RunSettings
from holdfast.storage.contract import Storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class AdoptedOther(HoldfastError):
    """A record of an earlier leader took our number: go on from it, throwing away what was in flight."""


class ToldToStop(HoldfastError):
    """The run was told to stop while it waited for a server: what waited is given up, nothing else is."""


@dataclass(frozen=True, kw_only=True)
class LeaderContext:
    """Made when a term is claimed; with another session, and another program, after Spark was lost."""

    program: Program
    settings: RunSettings
    spark: SparkSession
    checkpoint: Checkpoint
    term: int
    run: str
    clock: Clock
    monitor: Monitor
    wishes: Wishes
    recovery: Recovery
    look_around: Callable[[], None]
    """Called between epochs; raises what makes leading pointless, such as a newer leader."""
    owner: str = ""
    """The node that leads, if one does: its working state is its own."""
    root: Storage | None = None
    """Of a part: where the barriers of the whole job are."""
    replica: Replica | None = None
    """Of a part that a set of replicas leads: this process as a member of it."""
    goes_on: bool = False
    """Whether the same code has led before, here or on another node, so that its sinks have taken the job:
    what one of them refuses by now stops that sink alone. Otherwise it is a start, which is refused.
    """
    asked: bool = False
    """Whether this run has asked its sinks before, and the chain has all that was committed since: then none
    shows what the commits do not know."""

    chance: Callable[[], float] = random.random
    """From 0 to 1: by how much waits differ."""

    def refuse_if_superseded(self) -> None:
        """FencedOut: a newer leader exists."""
        refuse_if_superseded(self.checkpoint.storage, self.term)
