"""Which results of a Spark job count, and what its failure means for the epoch.

Always true: results are taken only from a job that Spark reported successful, one per shard.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from holdfast.errors import EpochFailed, EpochInterrupted, InputVanished, MachineError
from holdfast.runtime.spark_failures import explained, raised_by_task
from holdfast.tasks.messages import TaskResult, decode_result

if TYPE_CHECKING:
    from pyspark import RDD
    from pyspark.sql import DataFrame

    Job = DataFrame | RDD[tuple[bytes]]


def chosen_results(job: Callable[[], Job], what: str) -> list[TaskResult]:
    """The results of a job that Spark reported successful: of each shard exactly the one that Spark kept."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        rows = job().collect()
    except (PySparkException, Py4JError, ConnectionError, EOFError) as cause:
        found = explained(cause)
        if found.vanished:
            raise InputVanished(found.vanished) from cause
        if found.lacking:
            raise MachineError(f"{what} failed in Spark: {found.reason}") from cause
        kind = EpochInterrupted if found.outside else EpochFailed
        raise kind(f"{what} failed in Spark: {found.reason}; nothing of it became visible") from cause
    results = [decode_result(bytes(row[0])) for row in rows]
    for result in results:
        if result.failure is not None:
            raise raised_by_task(result.failure)
    shards = [result.shard for result in results]
    if len(set(shards)) != len(shards):
        raise EpochFailed(
            f"{what} gave two results for one shard ({sorted(shards)}); nothing of it became visible"
        )
    return results
