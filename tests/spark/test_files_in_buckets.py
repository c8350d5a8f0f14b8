"""Jobs on a real Spark that read from a bucket and show rows in one: a real S3 server, and no jar for it."""

from __future__ import annotations

import bz2
import datetime as dt
import gzip
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast.storage.urls import open_storage
from tests.services.faulty_bucket import Fault, FaultyBucket, Request
from tests.services.object_store import ObjectStore


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyBucket]:
    """The way to an S3 server, for this process and those that it starts."""
    with ObjectStore() as store, FaultyBucket(store.port) as bucket:
        for name, value in store.environment(bucket.port).items():
            monkeypatch.setenv(name, value)
        yield bucket


def run_app(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.spark.bucket_app", *arguments]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(["src", "."])}
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=280)


def lay_out(directory: Path) -> None:
    """Files of every kind, each kind in a folder of its own."""

    def case(name: str, files: dict[str, bytes], **how: Any) -> None:
        (directory / name).mkdir()
        (directory / f"{name}.case").write_text(json.dumps(how))
        for file, data in files.items():
            (directory / name / file).write_bytes(data)

    lines = b'{"user": "a", "n": 1}\nnonsense\n\n{"user": "b", "n": "x"}\r\n{"user": "c"}\n5\nnull\n'
    lines += b'{"user": "\xff", "n": 2}\n[{"user": "d", "n": 3}, {"user": "e", "n": 4}]\n{"user": "z"'
    more = b'{"n": 7, "user": "\xc3\xb6"}\n' * 3
    json_files = {"a b%.json": lines, "b.json": more, "c.json.gz": gzip.compress(more), "empty.json": b""}
    case("json", json_files, format="json", schema="user string, n long")
    case("lenient", json_files, format="json", schema="user string, n long", mode="DROPMALFORMED")
    array = b'[\n {"user": "a", "n": 1},\n {"user": "b",\n  "n": 2}\n]\n'
    case("array", {"a.json": array, "b.json": b'{"user":\n "c"}'}, format="json",
         schema="user string, n long not null", options={"multiLine": "true"})  # fmt: skip
    header = b"\xef\xbb\xbfuser,n,at\n"
    csv = header + b'a,1,2024-02-29 12:00:00\n\n#note\nb\n"c, d",3,\nd,x,\nuser,n,at\n'
    other = b"n,new,User\n7,z,g\nx,y,h\n"
    case("csv", {"a.csv": csv, "b.csv": other, "c.csv.bz2": bz2.compress(other)}, format="csv",
         schema="user string, n long, at timestamp", options={"header": "true", "comment": "#"})  # fmt: skip
    case("bare", {"a.csv": b"a;1\nb;2|c;3|"}, format="csv", schema="user string, n long",
         options={"sep": ";", "lineSep": "|"})  # fmt: skip
    case("latin", {"a.csv": "ö,1\nü,x\n".encode("latin-1")}, format="csv", schema="user string, n long",
         options={"encoding": "ISO-8859-1"})  # fmt: skip
    lay_out_parquet(directory, case)


def lay_out_parquet(directory: Path, case: Any) -> None:
    schema = (
        "N long, d double, t string, b binary, ok boolean, day date, at timestamp, here timestamp_ntz, "
        "price decimal(12, 3), list array<long>, map map<string, long>, inner struct<x: long, y: string>, "
        "missing string"
    )
    now = dt.datetime(2024, 2, 29, 12, 30, 0, 5)
    rows = {
        "n": pa.array([1, None, 3], pa.int32()),
        "d": pa.array([1.5, None, 2.5], pa.float32()),
        "t": pa.array(["a", None, "ö"]).dictionary_encode(),
        "b": pa.array([b"\x00", None, b""], pa.binary()),
        "ok": [True, None, False],
        "day": pa.array([now.date(), None, now.date()], pa.date32()),
        "at": pa.array([now, None, now], pa.timestamp("us", "UTC")),
        "here": pa.array([now, None, now], pa.timestamp("us")),
        "price": pa.array([Decimal("1.10"), None, Decimal("2.20")], pa.decimal128(10, 2)),
        "list": pa.array([[1, None], None, []], pa.list_(pa.int64())),
        "map": pa.array([[("k", 1)], None, []], pa.map_(pa.string(), pa.int64())),
        "inner": pa.array([{"x": 1, "y": "z"}, None, {"x": None, "y": None}]),
        "undeclared": [1, 2, 3],
    }
    case("parquet", {}, format="parquet", schema=schema)
    table = pa.table(rows)
    pq.write_table(table, directory / "parquet" / "a.parquet", row_group_size=1)
    pq.write_table(table.slice(0, 0), directory / "parquet" / "b.parquet")
    case("misfit", {}, format="parquet", schema="t long")
    pq.write_table(table, directory / "misfit" / "a.parquet")


def test_files_in_a_bucket_are_read_as_those_in_a_directory_are(bucket: FaultyBucket, tmp_path: Path) -> None:
    lay_out(tmp_path)
    url = f"{ObjectStore.url}/files"
    storage = open_storage(url)
    for file in tmp_path.glob("*/*"):
        storage.put(file.relative_to(tmp_path).as_posix(), file.read_bytes())
    ran = run_app("compare", str(tmp_path), url)
    assert ran.returncode == 0, ran.stderr[-3000:]
    found = json.loads(ran.stdout.splitlines()[-1])
    refused = found.pop("misfit")
    assert "column 't' is declared int64, found string" in refused[1]["text"]
    for name, (local, remote) in found.items():
        told = {key: [text.replace(str(tmp_path), url) for text in local.pop(key)] for key in ("told",)}
        assert remote == {**local, **told}, name
        assert remote["rows"], name
    assert len(found) == 7


def test_a_job_reads_keeps_and_shows_in_a_bucket_that_throttles_and_loses_answers(
    bucket: FaultyBucket,
) -> None:
    url = f"{ObjectStore.url}/job"
    storage = open_storage(url)
    for number in range(5):
        rows = [{"user": f"u{row % 2}", "n": row} for row in range(number * 4, number * 4 + 4)]
        storage.put(f"in/{number}.json", "".join(json.dumps(row) + "\n" for row in rows).encode())

    puts = 0

    def decide(request: Request) -> Fault:
        """Of six puts that show something one happens unheard and one is throttled; so is every tenth
        read."""
        nonlocal puts
        shown = request.is_put_below("job/out") or request.is_put_below("job/copy")
        if shown and "_holdfast-" not in request.path:
            puts += 1
            return {0: Fault.LOST, 1: Fault.THROTTLED}.get(puts % 6, Fault.NONE)
        throttled = request.method == "GET" and request.number % 10 == 0
        return Fault.THROTTLED if throttled else Fault.NONE

    bucket.decide = decide
    ran = run_app("run", url)
    bucket.decide = lambda request: Fault.NONE
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-3000:]
    struck = [fault for fault, _ in bucket.struck]
    assert Fault.LOST in struck
    assert Fault.THROTTLED in struck
    copies = [entry.name for entry in storage.list("copy/") if "_holdfast" not in entry.name]
    shown = [json.loads(line) for name in copies for line in storage.get(name).splitlines()]
    assert sorted(row["n"] for row in shown) == list(range(20))
    files = [entry.name for entry in storage.list("out/") if "_holdfast" not in entry.name]
    totals = [row for name in files for row in pq.read_table(pa.BufferReader(storage.get(name))).to_pylist()]
    newest = {row["user"]: row["total"] for row in totals}
    assert newest == {"u0": sum(range(0, 20, 2)), "u1": sum(range(1, 20, 2))}
