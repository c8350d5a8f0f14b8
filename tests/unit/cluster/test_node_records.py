"""What nodes write for one another: nodes of an older version read it too."""

from __future__ import annotations

import pytest

from holdfast.cluster.node_records import Lag, NodeRecord, PulseRecord, Unfit, in_short, read, written
from holdfast.errors import CorruptionError

NODE = NodeRecord(
    name="a", instance="i", host="h", pid=7, since_ms=1, standby="hot", code={"counts": {"source in": "1"}},
    lag={"counts": Lag(epoch=0, epochs=2, ms=300)}, unfit={"counts": Unfit(error="no mount", at_ms=5)},
)  # fmt: skip


def test_the_stored_form_stays_as_it_is() -> None:
    assert written(NODE) == (
        b'{"name":"a","instance":"i","host":"h","pid":7,"since_ms":1,"standby":"hot",'
        b'"code":{"counts":{"source in":"1"}},"lag":{"counts":{"epoch":0,"epochs":2,"ms":300}},'
        b'"unfit":{"counts":{"error":"no mount","at_ms":5}}}'
    )
    assert written(PulseRecord(node="a", instance="i", term=3)) == b'{"node":"a","instance":"i","term":3}'


def test_unknown_fields_are_passed_over_and_anything_else_is_refused() -> None:
    assert read(Lag, b'{"epoch":4,"new":1}', "/path") == Lag(epoch=4)
    with pytest.raises(CorruptionError, match="/path in ZooKeeper holds no Lag"):
        read(Lag, b"{}", "/path")


def test_an_error_is_one_line_and_never_empty() -> None:
    assert in_short(ValueError("two\n  lines"), 8) == "two line"
    assert in_short(ValueError(" ")) == "ValueError", "an empty problem would mean that there is none"
