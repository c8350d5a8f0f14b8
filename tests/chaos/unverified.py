"""Where this module is imported, deltas are read without a look at their checksums.

A worker imports it to run its function, so that a whole process tree goes without. For one negative control.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pyarrow.parquet as pq

from holdfast.state.files import delta
from holdfast.storage.contract import Storage
from holdfast.tasks import working_state
from tests.chaos.apps import Ledger


def _unverified_extent(storage: Storage, extent: Any) -> bytes:
    return storage.get(extent.object, extent.offset, extent.length)


class _Unverified:
    """pyarrow.parquet, of which deltas use one reader and one writer."""

    ParquetWriter = pq.ParquetWriter

    @staticmethod
    def ParquetFile(data: Any, page_checksum_verification: object) -> pq.ParquetFile:
        return pq.ParquetFile(data, page_checksum_verification=False)


for _module, _name, _value in [
    (working_state, "read_extent", _unverified_extent),
    (delta, "verify", partial(lambda data, name: None)),
    (delta, "pq", _Unverified),
]:
    setattr(_module, _name, _value)


class UnverifiedLedger(Ledger):
    """The same function, from this module."""
