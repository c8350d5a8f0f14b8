"""Attending to a seat that another node holds: a thread keeps this node ready to take it.

    prepare -> ( follow | rehearse )* until told to stop

Always true: what goes wrong here is told and tried again, and a takeover does without. Only a node that
cannot be made ready to begin with does not join.
Never here: what following means (see follower), what is rehearsed (see standby).
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from holdfast.clock import Clock
from holdfast.errors import SessionLost
from holdfast.graph.guarantees import Guarantee
from holdfast.graph.job_graph import Graph
from holdfast.nodes.follow_plan import Lag, Told, news
from holdfast.nodes.follower import Follower
from holdfast.nodes.warm_up import rehearse
from holdfast.runtime.driver import Prepared
from holdfast.runtime.epoch.program import Program, compile_graph, first_line
from holdfast.runtime.progress import Message
from holdfast.runtime.settings import RunSettings
from holdfast.runtime.spark_session import default_parallelism, open_session, revived, run_in_background
from holdfast.storage.urls import open_storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

POLL_SECONDS = 0.2
"""How often a hot standby looks for a new commit."""
RETRY_SECONDS = 5.0
REHEARSE_SECONDS = 30.0
"""Spark ends Python workers after a minute without work."""
TAG = "holdfast-standby"
ROUNDS_FIRST = 3
"""Rehearsals before a node joins: the first loads classes, the next are compiled code."""


class Attendant:
    """One seat, from `start` to `stop`. `hot`: the working state follows the leader's."""

    def __init__(
        self, graph: Graph, settings: RunSettings, owner: str, clock: Clock, say: Message, *, hot: bool
    ) -> None:
        self._graph, self._settings, self._owner = graph, settings, owner
        self._clock, self._say = clock, say
        self._hot = hot and settings.guarantee is not Guarantee.AT_MOST_ONCE
        self._stopping, self._ready = threading.Event(), threading.Event()
        self._spark: SparkSession | None = None
        self._program: Program | None = None
        self._follower: Follower | None = None
        self._told = Told.NOTHING
        self._worked = 0.0
        self.failure: Exception | None = None
        """What the first preparation failed with."""
        self.lost: SessionLost | None = None
        """Spark is gone for good: this process cannot lead any more."""
        self._thread = threading.Thread(target=self._attend, name="holdfast-standby", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Do nothing more after what is under way; returns at once."""
        self._stopping.set()

    def join(self, seconds: float) -> None:
        self._thread.join(seconds)

    @property
    def preparing(self) -> bool:
        return self.failure is None and not self._ready.is_set()

    @property
    def prepared(self) -> Prepared:
        """What a run can go on with."""
        view = self._follower.view if self._follower is not None else None
        return Prepared(owner=self._owner, spark=self._spark, program=self._program, view=view)

    @property
    def lag(self) -> Lag | None:
        """How far behind the working state is; None: this standby follows nothing."""
        return self._follower.lag if self._follower is not None else None

    def _attend(self) -> None:
        while not self._prepared_at_last():
            if self._stopping.wait(RETRY_SECONDS):
                return
        self._rehearse(ROUNDS_FIRST)
        self._ready.set()
        wait = 0.0
        while not self._stopping.wait(wait):
            wait = POLL_SECONDS if self._follow() else RETRY_SECONDS
            if self._clock.monotonic() - self._worked >= REHEARSE_SECONDS and not self._stopping.is_set():
                self._rehearse(1)

    def _prepared_at_last(self) -> bool:
        try:
            self._prepare(open_session(self._graph.name))
        except Exception as failure:
            self.failure = failure
            self._say(f"this standby could not be made ready and tries again: {first_line(failure)}")
            return False
        return True

    def _prepare(self, spark: SparkSession) -> None:
        # For all jobs of this thread: where this node leads another seat, its epochs go first.
        run_in_background(spark, f"{TAG}-{self._graph.name}", f"holdfast standby of {self._graph.name}")
        self._spark, program = spark, compile_graph(self._graph, spark)
        self._program = program
        if self._hot:
            storage = open_storage(self._settings.checkpoint)
            self._follower = Follower(spark, program, self._settings, storage, self._owner, self._clock)

    def _follow(self) -> bool:
        """Look once, and tell how far it got. False: something went wrong."""
        if self._follower is None:
            return True
        problem = None
        try:
            if self._follower.step():
                self._worked = self._clock.monotonic()
        except Exception as failure:
            problem = failure
        text, self._told = news(self._follower.lag, self._told)
        if text:
            self._say(text)
        if problem is not None:
            self._mend(problem)
        return problem is None

    def _rehearse(self, rounds: int) -> None:
        self._worked = self._clock.monotonic()
        assert self._spark is not None
        assert self._program is not None
        known = self._follower.view.parallelism if self._follower is not None else 0
        shards = min(
            self._settings.parallelism or known or default_parallelism(self._spark), self._settings.key_groups
        )
        try:
            rehearse(self._spark, self._program, self._settings, shards, rounds)
        except Exception as failure:
            if self._mend(failure):
                self._say(f"the first epoch after a takeover will be slow: {first_line(failure)}")

    def _mend(self, problem: Exception) -> bool:
        """After a failure: see to it that there is a Spark session. True: there was one."""
        assert self._spark is not None
        try:
            session = revived(self._spark, self._graph.name, own=True)
            if session is self._spark:
                return True
            self._say(f"the Spark session of this standby had ended ({first_line(problem)}); one was started")
            self._prepare(session)
        except SessionLost as lost:
            self.lost = lost
            self._stopping.set()
        except Exception as failure:
            self._say(f"this standby could not be made ready again: {first_line(failure)}")
        return False
