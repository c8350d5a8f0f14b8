"""Finding out what of a checkpoint can still be trusted.

Never here: going back (see commits.Chain.rewind) and checking data files; whoever restores knows how to
read those.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.checkpoint.chain.history import History, brings_manifest
from holdfast.checkpoint.chain.view import CheckpointView, Head
from holdfast.errors import CorruptionError


def verify(history: History) -> list[str]:
    """Every damaged or missing record and manifest above the floor, one line each.

    Reads all of them from storage.
    """
    fresh = History(history.storage)
    numbers = fresh.numbers()
    problems: list[str] = []
    for number in range(numbers[0], numbers[-1] + 1) if numbers else ():
        try:
            record = fresh.record(number)
            if brings_manifest(record):
                fresh.read_manifest(record)
        except CorruptionError as damage:
            problems.append(str(damage))
    if not problems:
        try:
            fresh.load()
        except CorruptionError as damage:
            problems.append(str(damage))
    return problems


def newest_intact(
    history: History, head: Head, intact: Callable[[CheckpointView], bool]
) -> CheckpointView | None:
    """The newest retained commit whose records fold and whose files `intact` finds whole; None: there is
    none.

    Asks `intact` newest first and stops at the first yes.
    """
    for number in range(head.number, max(head.retained_from, 1) - 1, -1):
        try:
            view = history.view_at(number)
        except CorruptionError:
            continue
        if intact(view):
            return view
    return None
