"""Which files of a channel a Spark task reads together: many small ones, or one that is large.

Always true: a partition has files that follow one another in the channel, and reads them in that order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql.datasource import InputPartition

from holdfast.checkpoint.store.records import SentFile

PARTITION_BYTES = 128 << 20
OPEN_BYTES = 4 << 20
"""What each file counts for besides its bytes, as among Spark's own files: it has to be opened."""


@dataclass
class FilesPartition(InputPartition):
    """Files of a channel that one task reads."""

    files: tuple[SentFile, ...]


def packed(files: Sequence[SentFile], least: int) -> list[FilesPartition]:
    """Files in partitions of up to PARTITION_BYTES; `least` of these or more, if there are so many files."""
    count_max = max(1, len(files) // least)
    found: list[list[SentFile]] = []
    size = 0
    for file in files:
        size += file.extent.length + OPEN_BYTES
        if not found or len(found[-1]) == count_max or size > PARTITION_BYTES:
            found.append([])
            size = file.extent.length + OPEN_BYTES
        found[-1].append(file)
    return [FilesPartition(tuple(each)) for each in found]
