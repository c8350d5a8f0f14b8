"""A part whose state is in no checkpoint, on a real Spark: what is open is had again from its rows."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.checkpoint.chain.history import History
from holdfast.checkpoint.store import names
from holdfast.connectors.contract import StagedPart
from holdfast.connectors.files.sink import FilePublisher
from holdfast.errors import RestoreError, SinkFailed
from holdfast.storage.urls import open_storage

pytestmark = pytest.mark.timeout(600)

EVENTS_MAX = 200
START = datetime(2026, 1, 1, tzinfo=UTC)
EVENTS = [(n % 3, START + timedelta(seconds=n ^ 1)) for n in range(EVENTS_MAX)]
"""A second apart, every second one a little early. An epoch has 20, and a window lasts 30 seconds."""


def job(out: Path, protection: Any) -> hf.Job:
    made = hf.Job("counts")
    rows = hf.MemorySource(EVENTS, schema="key long, ts timestamp")
    stream = made.source(rows, uid="events").watermark("ts", delay="2s")
    stream = stream.into(made.part("windows", protection=protection), uid="events-in")
    counted = stream.key_by("key").window(hf.sliding("30s", every="10s"), on="ts")
    counts = counted.aggregate(uid="counted", n=hf.count()).transform(lambda df: df.drop("revision"))
    counts.sink(hf.FileSink(out, format="parquet"), uid="out")
    return made


def run(made: hf.Job, spark: SparkSession, checkpoint: Path) -> list[str]:
    said: list[str] = []
    made.run(
        checkpoint, spark=spark, until="exhausted", on_message=said.append, max_rows_per_epoch=20,
        parallelism=2, retain=2, working_dir=checkpoint.parent / "working", restart=hf.NoRestart(),
    )  # fmt: skip
    return said


def shown(out: Path) -> Counter[tuple[int, datetime, int]]:
    rows = pq.read_table(out).to_pylist()
    return Counter((row["key"], row["window_start"], row["n"]) for row in rows)


def expected() -> Counter[tuple[int, datetime, int]]:
    """Every window, once."""
    sizes: Counter[tuple[int, datetime]] = Counter()
    for key, at in EVENTS:
        last = at - timedelta(seconds=(at - START).total_seconds() % 10)
        sizes.update((key, last - timedelta(seconds=before)) for before in (0, 10, 20))
    return Counter((key, start, n) for (key, start), n in sizes.items())


def test_windows_whose_state_is_nowhere_survive_a_hard_stop(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint, out = tmp_path / "ck", tmp_path / "out"
    publish, upstream = FilePublisher.publish, hf.UpstreamBackup()

    def stuck(publisher: FilePublisher, epoch: int, parts: Sequence[StagedPart]) -> None:
        if epoch == 7:
            raise OSError("no room")
        publish(publisher, epoch, parts)

    with monkeypatch.context() as patch:
        patch.setattr(FilePublisher, "publish", stuck)
        with pytest.raises(SinkFailed):
            run(job(out, upstream), spark, checkpoint)
    windows = open_storage(str(checkpoint / "parts" / "windows"))
    before = History(windows).load()
    assert 1 < before.needs_from <= before.last_epoch, "windows are open, and closed ones need no rows"
    # Nothing is left of the working state, and the stored one there never was.
    shutil.rmtree(tmp_path / "working")
    history = History(windows)
    assert not any(history.record(n).deltas or history.record(n).snapshots for n in history.numbers())
    assert not windows.list(names.SNAPSHOTS)

    said = run(job(out, upstream), spark, checkpoint)
    again = [line for line in said if "is read again, from epoch" in line]
    assert again, said
    assert shown(out) == expected()
    # What closed windows were made of is let go.
    run(job(out, upstream), spark, checkpoint)
    main = History(open_storage(str(checkpoint / "parts" / "main"))).load()
    assert main.channels["events-in"].released >= 4, main.channels["events-in"]

    # Saved from now on: open windows are had again once more, and then kept.
    run(job(out, hf.Rollback()), spark, checkpoint)
    assert shown(out) == expected()
    after = History(windows).load()
    assert after.needs_from == 0
    assert after.deltas["counted"]
    with pytest.raises(RestoreError, match="would start it from nothing"):
        run(job(out, upstream), spark, checkpoint)
