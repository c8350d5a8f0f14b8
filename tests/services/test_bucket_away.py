"""A FileSink whose bucket refuses connections while another sink goes on: a real S3 server, no Spark."""

from __future__ import annotations

import json
import uuid
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from holdfast.checkpoint.store.records import Extent, StagedFile
from holdfast.connectors.files.sink import FileSink
from holdfast.connectors.memory import MemorySink
from holdfast.runtime.epoch import outages
from holdfast.runtime.epoch.committer import Committer
from holdfast.runtime.epoch.publisher import Publishing
from holdfast.runtime.parts.outlets import Outlets
from holdfast.storage import urls
from holdfast.storage.checksums import checksum
from holdfast.storage.local_directory import LocalStorage
from holdfast.storage.urls import open_storage
from holdfast.tasks.task_output import pack_rows
from tests.services.cable import Cable
from tests.services.object_store import ObjectStore
from tests.unit.runtime.control.control_kit import wait_until
from tests.unit.runtime.epoch.test_committer import outcome
from tests.unit.runtime.leader_kit import leader_of


@pytest.fixture
def cable(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cable]:
    monkeypatch.setattr(outages, "MOST_SECONDS", 0.2)
    with ObjectStore() as store, Cable(store.port) as cable:
        for name, value in store.environment(cable.port).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(urls, "_opened", OrderedDict())
        yield cable


@pytest.mark.parametrize("max_file_rows", [None, 2], ids=["one file", "lanes"])
def test_a_bucket_that_is_away_is_waited_for_and_holds_up_no_other_sink(
    cable: Cable, tmp_path: Path, max_file_rows: int | None
) -> None:
    place, checkpoint, said = f"{ObjectStore.url}/{uuid.uuid4().hex}", LocalStorage(tmp_path), list[str]()
    alive = MemorySink()
    away = FileSink(place, format="json", max_file_rows=max_file_rows)
    sinks = {"away": (away, "s"), "alive": (alive, "s")}
    context = leader_of(checkpoint, sinks=sinks, run="run", say=said.append)
    view = context.checkpoint.chain.load()
    publishing = Publishing(context, view)
    publishing.begin()
    work = Committer(context, publishing, view, (), Outlets((), context.clock))

    def commit(epoch: int) -> None:
        done = outcome(epoch)
        data, name = pack_rows(pa.table({"n": [2 * epoch, 2 * epoch + 1]})), f"data/{epoch}"
        checkpoint.put(name, data)
        extent = Extent(object=name, offset=0, length=len(data), checksum=checksum(data))
        file = StagedFile(
            stream="s", epoch=epoch, part=0, extent=extent, rows=2, sinks=("away", "alive"), input=f"i{epoch}"
        )
        done.staged.append(file)
        work.submit([done])

    def told() -> dict[str, object] | None:
        assert work.room > 0
        waits: dict[str, object] | None = context.monitor.progress.sinks["away"]["unavailable"]
        return waits

    commit(1)
    work.record_published()
    cable.refuse()
    for epoch in (2, 3, 4):
        commit(epoch)
    wait_until(lambda: len(alive.rows()) == 8, "the other sink shows all")
    wait_until(lambda: told() is not None, "the bucket is waited for")
    work.check(0)
    assert publishing.through == {"away": 1, "alive": 4}
    assert said[-1].startswith("WAITING for the server of sink 'away': ")
    assert f"cannot be used now: cannot list {place}" in " ".join(map(str, (told() or {}).values()))
    cable.restore()
    work.record_published()
    assert told() is None
    work.close(wait=True)
    publishing.close()
    storage = open_storage(place)
    files = [entry.name for entry in storage.list("") if not entry.name.startswith("_")]
    shown = [json.loads(line)["n"] for name in files for line in storage.get(name).splitlines()]
    assert shown == [2, 3, 4, 5, 6, 7, 8, 9]
