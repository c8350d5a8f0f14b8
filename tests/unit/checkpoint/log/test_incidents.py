from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from holdfast.checkpoint.log import incidents
from holdfast.checkpoint.log.incidents import read_failovers, record_failover
from holdfast.checkpoint.store.log_records import FailoverRecord
from holdfast.storage.local_directory import LocalStorage

FIRST = FailoverRecord(
    at_ms=1, node="a", host="h", standby="warm", term=1, before="", reason="nobody held it"
)


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    return LocalStorage(tmp_path / "ck")


def test_failovers_are_kept_in_order_and_the_oldest_are_forgotten(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(incidents, "FAILOVERS_KEPT", 3)
    for term in range(1, 6):
        record_failover(storage, replace(FIRST, term=term))
    assert [record.term for record in read_failovers(storage)] == [3, 4, 5]


def test_a_damaged_failover_is_passed_over(storage: LocalStorage, tmp_path: Path) -> None:
    record_failover(storage, FIRST)
    record_failover(storage, replace(FIRST, term=2))
    (tmp_path / "ck" / "failovers" / f"{1:012d}").write_bytes(b"?")
    assert [record.term for record in read_failovers(storage)] == [2]
