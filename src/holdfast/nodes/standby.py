"""Standing by for a seat that another node holds: a thread keeps this node ready to take it.

    prepare -> ( follow | warm up )* until told to stop

Always true: what goes wrong here is told and tried again, and a takeover does without. Only a node that
cannot be made ready to begin with does not join.
Never here: what following means (see follower), what is warmed up (see warm_up).
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from holdfast.cluster.node_records import Lag
from holdfast.errors import SessionLost, first_line
from holdfast.nodes.follow_plan import Told, news
from holdfast.nodes.follower import Follower
from holdfast.nodes.job_on_node import JobOnNode
from holdfast.nodes.registration import NodeContext
from holdfast.runtime.driver import Prepared
from holdfast.runtime.epoch.program import Program, compile_graph
from holdfast.runtime.settings import check_settings
from holdfast.runtime.spark_session import default_parallelism, open_session, revived, run_in_background
from holdfast.runtime.stored_fit import is_of_same_code
from holdfast.runtime.warm_up import warm_up

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

POLL_SECONDS = 0.2
"""How often a hot standby looks for a new commit."""
RETRY_SECONDS = 5.0
WARM_UP_SECONDS = 30.0
"""Spark ends Python workers after a minute without work."""
TAG = "holdfast-standby"
ROUNDS_FIRST = 3
"""Warm-ups before a node joins: the first loads classes, the next are compiled code."""
FINISH_SECONDS = 2.0
"""How long a takeover waits for the last step of following. More does not pay: tasks that race for a shard do
each other no harm.
"""


class Standby:
    """For one seat, until `stop`. On a hot standby the working state follows the leader's."""

    def __init__(self, job: JobOnNode, context: NodeContext) -> None:
        self._job, self._owner, self._clock = job, context.owner, context.clock
        self._graph, self._settings = job.job.graph(), check_settings(job.checkpoint, job.options)
        self._say = context.saying(job)
        self._hot = job.standby(context.registration.standby) == "hot"
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
        self._thread = threading.Thread(target=self._stand_by, name="holdfast-standby", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Do nothing more after what is under way; returns at once."""
        self._stopping.set()

    def close(self) -> None:
        """Stop, and wait a little for what is under way."""
        self.stop()
        self._thread.join(FINISH_SECONDS)

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
        """How far behind the working state is; None: this standby follows nothing, or has not looked yet."""
        return self._follower.lag if self._follower is not None else None

    def _stand_by(self) -> None:
        while not self._prepare_first():
            if self._stopping.wait(RETRY_SECONDS):
                return
        self._warm_up(ROUNDS_FIRST)
        self._ready.set()
        wait = 0.0
        while not self._stopping.wait(wait):
            wait = POLL_SECONDS if self._follow() else RETRY_SECONDS
            if self._clock.monotonic() - self._worked >= WARM_UP_SECONDS and not self._stopping.is_set():
                self._warm_up(1)

    def _prepare_first(self) -> bool:
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
        self._spark, program = spark, compile_graph(self._graph, spark, have_been_shown=self._is_of_same_code)
        self._program = program
        if self._hot:
            self._follower = Follower(
                spark, program, self._settings, self._job.storage, self._owner, self._clock
            )

    def _is_of_same_code(self) -> bool:
        return is_of_same_code(self._graph, self._job.storage, self._settings)

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
        if (lag := self._follower.lag) is not None:
            text, self._told = news(lag, self._told)
            if text:
                self._say(text)
        if problem is not None:
            self._revive(problem)
        return problem is None

    def _warm_up(self, rounds: int) -> None:
        self._worked = self._clock.monotonic()
        assert self._spark is not None
        assert self._program is not None
        known = self._follower.view.parallelism if self._follower is not None else 0
        shards = min(
            self._settings.parallelism or known or default_parallelism(self._spark), self._settings.key_groups
        )
        try:
            warm_up(self._spark, self._program, self._settings, shards, rounds)
        except Exception as failure:
            if self._revive(failure):
                self._say(f"the first epoch after a takeover will be slow: {first_line(failure)}")

    def _revive(self, problem: Exception) -> bool:
        """After a failure: see to it that there is a Spark session. True: there was one."""
        assert self._spark is not None
        try:
            spark = revived(self._spark, self._graph.name, own=True)
            if spark is self._spark:
                return True
            self._say(f"the Spark session of this standby had ended ({first_line(problem)}); one was started")
            self._prepare(spark)
        except SessionLost as lost:
            self.lost = lost
            self._stopping.set()
        except Exception as failure:
            self._say(f"this standby could not be made ready again: {first_line(failure)}")
        return False
