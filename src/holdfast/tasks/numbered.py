"""Tasks that are given nothing but their numbers, in both of the ways in which Spark runs them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain

import pyarrow as pa

Body = Callable[[Iterable[int]], Iterator[bytes]]
"""What a task does with its numbers."""
GIVEN = "given binary"
"""The columns of what they give under `mapInArrow`."""


def in_rows(body: Body, numbers: Iterable[int]) -> Iterator[tuple[bytes]]:
    """Under `mapPartitions`."""
    return ((given,) for given in body(numbers))


def in_arrow(body: Body, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Under `mapInArrow`."""
    numbers = chain.from_iterable(batch.column(0).to_pylist() for batch in batches)
    for given in body(numbers):
        yield pa.RecordBatch.from_arrays([pa.array([given], pa.binary())], ["given"])
