"""Which schema a stored snapshot is read by."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from holdfast.checkpoint.store.open_snapshot import snapshot_source
from holdfast.checkpoint.store.records import OperatorSchema, SnapshotFile
from holdfast.state.contract import EMPTY_VERSION
from holdfast.state.encoding.layout import StateLayout
from holdfast.state.files.schema_conversion import Generation, Lineage


def generation(number: int, type: str) -> Generation:
    states = [(1, "count", "value", type)]
    return Generation(StateLayout.of_rows("op", (("k", "string"),), states, number))


LINEAGE = Lineage((generation(0, "int"), generation(1, "long")))


def file(schema: OperatorSchema | None) -> SnapshotFile:
    return SnapshotFile(
        operator="op", first_group=0, end_group=4, version=EMPTY_VERSION, object="s", length=0, chunk_bytes=4,
        chunks=(), backend="lmdb", schema=schema,
    )  # fmt: skip


@pytest.mark.parametrize("written", [None, 0, 1])
def test_a_snapshot_that_names_no_schema_is_of_the_first(written: int | None, tmp_path: Path) -> None:
    """By the schema in force its values would be taken for what they are not."""
    schema = None if written is None else OperatorSchema(uid="op", key=(), states=(), generation=written)
    convert = snapshot_source(file(schema), LINEAGE, tmp_path / "s").convert
    assert (convert is None) == (written == 1)
    if convert is not None:
        first, last = (each.layout.fields[0] for each in LINEAGE.generations)
        [base] = LINEAGE.layout.keys.encode([pa.array(["a"])], np.zeros(1, np.uint16))
        [(_, value)] = convert([(base + first.suffix, first.codec.encode(pa.array([7], pa.int32()))[0])])
        assert last.codec.decode_one(value or b"") == 7
