"""A DeltaSink on a real S3 server, which throttles it and loses answers to its commits."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from holdfast.connectors.contract import Mark, StagedPart
from holdfast.connectors.lakes.delta import DeltaSink
from holdfast.storage import urls
from tests.services.faulty_bucket import Fault, FaultyBucket, Request
from tests.services.object_store import ObjectStore

COLUMNS = pa.schema([("n", pa.int64())])


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyBucket]:
    with ObjectStore() as store, FaultyBucket(store.port) as bucket:
        for name, value in store.environment(bucket.port).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(urls, "_opened", OrderedDict())
        yield bucket


def part(*numbers: int) -> StagedPart:
    table = pa.table({"n": pa.array(numbers, pa.int64())}, COLUMNS)
    return StagedPart(0, len(numbers), lambda: table, f"slices of {numbers}")


@pytest.mark.parametrize("fault", [Fault.LOST, Fault.THROTTLED])
def test_commits_that_are_not_answered_are_found_or_made_once(bucket: FaultyBucket, fault: Fault) -> None:
    path = f"{ObjectStore.url}/{fault.name.lower()}"
    sink = DeltaSink(path)
    sink.check_schema(COLUMNS)
    publisher = sink.publisher("job", "out")
    publisher.begin(0)
    commits = 0

    def decide(request: Request) -> Fault:
        nonlocal commits
        if not (request.method == "PUT" and request.path.endswith(".json")):
            return Fault.NONE
        commits += 1
        return fault if commits % 2 else Fault.NONE

    bucket.decide = decide
    for epoch in range(1, 5):
        publisher.publish(epoch, [part(epoch, -epoch)])
    bucket.decide = lambda request: Fault.NONE
    assert fault in [struck for struck, _ in bucket.struck]
    shown = DeltaTable(path, storage_options={"AWS_ALLOW_HTTP": "true"}).to_pyarrow_table()["n"].to_pylist()
    assert sorted(shown) == [-4, -3, -2, -1, 1, 2, 3, 4]
    assert publisher.mark() == Mark(4, "slices of (4, -4)")
