"""What the logic of working state asks of a database: four sorted tables, changed in one transaction.

Never here: a database (see lmdb, rocksdb), what the tables mean to a shard (see home).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

DATA, GONE, UNDO, META = b"data", b"gone", b"undo", b"meta"
"""Entries; keys deleted over a base; undo blobs by epoch; marker, links and base."""
TABLES = (DATA, GONE, UNDO, META)


class UnusableStore(Exception):
    """The database cannot make sense of its files. Internal: whoever opened it decides what that means."""


class Tx(Protocol):
    """One transaction: a consistent view, with its own writes in it. Valid only in the function given it."""

    def get(self, table: bytes, key: bytes) -> bytes | None:
        """One value."""

    def get_many(self, table: bytes, keys: Sequence[bytes]) -> list[bytes | None]:
        """Values aligned with `keys`."""

    def count(self, table: bytes) -> int:
        """How many items the table has. May look at each of them."""

    def put(self, table: bytes, key: bytes, value: bytes) -> None:
        """Store one item."""

    def put_many(self, table: bytes, items: Iterable[tuple[bytes, bytes]]) -> None:
        """Store sorted items."""

    def delete_many(self, table: bytes, keys: Iterable[bytes]) -> None:
        """Delete what is there of `keys`."""

    def items(
        self, table: bytes, first: bytes = b"", end: bytes | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        """Items in key order from `first` (in) to `end` (out; None: to the last)."""

    def page(
        self, table: bytes, first: bytes, limit: int, end: bytes | None = None
    ) -> list[tuple[bytes, bytes]]:
        """At most `limit` items from `first` (in) on, to `end` (out; None: to the last)."""
