"""The Spark session: the user's own, or one made with settings that suit epochs.

Never here: stopping a Spark session that the user gave.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
import threading
import weakref
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from holdfast.errors import MachineError, RetryableError, SessionLost
from holdfast.runtime.jvm_archive import prepare_jvm
from holdfast.runtime.spark_failures import no_cluster
from holdfast.tasks.numbered import GIVEN, Body, in_arrow, in_rows

if TYPE_CHECKING:
    from pyspark import RDD, SparkContext
    from pyspark.sql import DataFrame, SparkSession

_registered: weakref.WeakSet[SparkSession] = weakref.WeakSet()
_registering = threading.Lock()
PARALLELISM_UNKNOWN = 4
SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"
CONSOLE_PROGRESS = "spark.ui.showConsoleProgress"
"""Spark itself turns it on where it finds no setting: whether a user did cannot be told, and it would be
written across what Holdfast shows."""
PARTITIONS_PER_SHARD = 4
"""How many partitions a grouping may have for each shard, before they cost more than they save."""
_ONE_KIND_OF_WORKER = "spark.executorEnv.SPARK_SIMPLIFIED_TRACEBACK"
"""Spark gives this to the Python workers of DataFrames alone. Where all have it, all tasks share workers."""
GOOD_SETTINGS = {
    "spark.sql.adaptive.enabled": "false",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.shuffle.reduceLocality.enabled": "false",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "250000",
    _ONE_KIND_OF_WORKER: "1",
}
"""What makes a small epoch cheap and keeps shards on their executors."""

_OWN_SESSION = {
    **GOOD_SETTINGS,
    "spark.ui.enabled": "false",
    CONSOLE_PROGRESS: "false",
    "spark.scheduler.mode": "FAIR",
    "spark.sql.ui.retainedExecutions": "20",
    "spark.ui.retainedJobs": "50",
    "spark.ui.retainedStages": "50",
    "spark.ui.retainedTasks": "500",
    "spark.sql.session.timeZone": "UTC",
    "spark.cleaner.periodicGC.interval": "5min",
}
WORKER_DAEMON = "holdfast.tasks.worker_daemon"
_LOCAL_SESSION = {"spark.python.daemon.module": WORKER_DAEMON}
"""Only where workers are known to find Holdfast before they are told where to look for modules."""


def open_session(name: str) -> SparkSession:
    """The active Spark session, or a new one: `local[*]` unless the environment names a master."""
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    if not os.environ.get("SPARK_REMOTE"):
        require_java()
        # Workers run the Python that this process runs: it is the one that has Holdfast and the user's
        # packages.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        prepare_jvm()
    builder, given = SparkSession.builder.appName(f"holdfast {name}"), _given(name)
    for key, value in own_settings(given, os.environ).items():
        builder = builder.config(key, value)
    try:
        session = builder.getOrCreate()
    except Exception as failure:
        refuse_if_away(os.environ.get("SPARK_REMOTE") or given.get("spark.master", ""), failure)
        raise
    if not os.environ.get("SPARK_REMOTE"):
        session.sparkContext.setLogLevel("ERROR")
        if not session.sparkContext.getConf().contains(SHUFFLE_PARTITIONS):
            session.conf.set(SHUFFLE_PARTITIONS, str(default_parallelism(session)))
    return session


def _given(name: str) -> dict[str, str]:
    """What the user has set, wherever: options of spark-submit, PYSPARK_SUBMIT_ARGS, spark-defaults.conf."""
    if os.environ.get("SPARK_REMOTE"):
        return {}
    from pyspark import SparkConf, SparkContext

    # Only a JVM can tell. This starts the one that the Spark session is going to use, if none has started it.
    SparkContext.setSystemProperty("holdfast.job", name)
    return dict(SparkConf().getAll())


def refuse_if_away(cluster: str, failure: Exception) -> None:
    """RetryableError: there is no Spark session because the cluster that was asked for one does not answer.
    `cluster`: its master."""
    if not cluster or _is_local(cluster) or not (why := no_cluster(failure)):
        return
    raise RetryableError(
        f"the Spark master {cluster} does not answer ({why}); see that it runs and can be reached from this "
        "machine, or name another one (--master, or spark.master in spark-defaults.conf), and start again"
    ) from failure


def own_settings(given: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """What Holdfast sets in a Spark session of its own: nothing that the user has set."""
    # A JVM that spark-submit has started does not know where this process looks for modules.
    local = "PYSPARK_GATEWAY_PORT" not in environment and _is_local(given.get("spark.master", ""))
    settings = {**_OWN_SESSION, **_LOCAL_SESSION} if local else _OWN_SESSION
    return {key: value for key, value in settings.items() if key not in given or key == CONSOLE_PROGRESS}


def register_data_sources(spark: SparkSession) -> None:
    """Make the formats `holdfast` (channels) and `holdfast-state` known to a Spark session. Again: nothing
    happens.

    Not done for every Spark session that Holdfast opens: Spark starts a Python process for the first one.
    """
    from holdfast.inspect.datasource import StateDataSource
    from holdfast.runtime.doors.data_source import ChannelDataSource

    with _registering:
        if spark not in _registered:
            spark.dataSource.register(StateDataSource)
            spark.dataSource.register(ChannelDataSource)
            _registered.add(spark)


def revived(spark: SparkSession, name: str, own: bool) -> SparkSession:
    """The Spark session, if it still works; otherwise a new one in its place.

    SessionLost: it was the user's, or the JVM behind it is gone: PySpark starts one per process.
    """
    if _works(spark):
        return spark
    if own:
        with contextlib.suppress(Exception):
            spark.stop()
        with contextlib.suppress(Exception):
            session = open_session(name)
            if _works(session):
                return session
    raise SessionLost("the Spark session ended and cannot be had again in this process; start the job again")


def refuse_if_lost(spark: SparkSession) -> None:
    """SessionLost: the Spark session has ended."""
    if not _works(spark):
        raise SessionLost("the Spark session ended; start the job again")


def _works(spark: SparkSession) -> bool:
    try:
        return bool(spark.sql("select 1").collect())
    except Exception:
        return False


def describe_jobs(spark: SparkSession, text: str) -> None:
    """Let Spark's own pages show what the next jobs of this thread are for."""
    context = _context(spark)
    if context is not None:
        context.setJobDescription(text)


def require_java() -> None:
    """Refuse early, and in one line, when there is no Java to run Spark on."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=os.path.join(home, "bin")) if home else shutil.which("java")
    if java is None:
        where = f"in JAVA_HOME={home}" if home else "on the PATH, and JAVA_HOME is not set"
        raise MachineError(
            f"Spark needs Java 17 or newer and there is no java {where}; "
            "install one, for example with: apt-get install openjdk-17-jre-headless"
        )


def missing_settings(spark: SparkSession) -> list[str]:
    """Which of the good settings a user's own session lacks, as `key=value` to add."""
    missing = [
        f"{key}={value}"
        for key, value in GOOD_SETTINGS.items()
        if str(spark.conf.get(key, None)).lower() != value
    ]
    shards = default_parallelism(spark)
    return missing if groups_cheaply(spark, shards) else [*missing, f"{SHUFFLE_PARTITIONS}={shards}"]


def groups_cheaply(spark: SparkSession, shards: int) -> bool:
    """Whether a grouping in this session has few partitions, or fits their number to the rows."""
    adaptive = str(spark.conf.get("spark.sql.adaptive.enabled", None)).lower() == "true"
    partitions = int(spark.conf.get(SHUFFLE_PARTITIONS, None) or 0)
    return adaptive or partitions <= PARTITIONS_PER_SHARD * shards


def is_single_executor(spark: SparkSession) -> bool:
    """Whether every task runs in one process tree, so that no shard can move away from its state."""
    return _is_local(str(spark.conf.get("spark.master", None)))


def _is_local(master: str) -> bool:
    return re.fullmatch(r"local(\[.*\])?", master) is not None


def default_parallelism(spark: SparkSession) -> int:
    """How many tasks run at once; through Spark Connect, which cannot say, PARALLELISM_UNKNOWN."""
    context = _context(spark)
    return PARALLELISM_UNKNOWN if context is None else max(1, context.defaultParallelism)


def numbered_tasks(spark: SparkSession, count: int, body: Body) -> DataFrame | RDD[tuple[bytes]]:
    """So many tasks, each given its number, from 0; to be collected: what they give, a value a row.

    Without a DataFrame, unless those have workers of their own: to plan one takes longer than few rows do.
    """
    context = _context(spark)
    if context is None or context.getConf().get(_ONE_KIND_OF_WORKER) is None:
        return spark.range(0, count, 1, count).mapInArrow(partial(in_arrow, body), GIVEN)
    return context.parallelize(range(count), count).mapPartitions(partial(in_rows, body))


def is_idle(spark: SparkSession) -> bool:
    """Whether no job runs or waits in the session; through Spark Connect, which cannot say, False."""
    context = _context(spark)
    return context is not None and not context.statusTracker().getActiveJobsIds()


def run_in_background(spark: SparkSession, tag: str, description: str) -> None:
    """Let the jobs of this thread share the cores with epochs, where the session schedules by pools, and be
    interrupted by their tag.
    """
    context = _context(spark)
    if context is not None:
        context.setLocalProperty("spark.scheduler.pool", "holdfast-background")
    describe_jobs(spark, description)
    spark.addTag(tag)


def interrupt_jobs(spark: SparkSession, tag: str) -> None:
    """Cut short the jobs with this tag. A session that is gone has none."""
    with contextlib.suppress(Exception):
        spark.interruptTag(tag)


def _context(spark: SparkSession) -> SparkContext | None:
    """The session's SparkContext; None through Spark Connect, which has none."""
    from pyspark.errors import PySparkAttributeError

    try:
        return spark.sparkContext
    except PySparkAttributeError:
        return None
