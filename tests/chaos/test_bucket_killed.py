"""A whole job that reads from a bucket, keeps its checkpoint there and shows rows there, killed again and
again while it writes: every row takes effect once."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast.storage.urls import open_storage
from tests.services.faulty_bucket import Fault, FaultyBucket, Request
from tests.services.object_store import ObjectStore

KILLS = 6
FILES, ROWS_PER_FILE = 12, 4


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyBucket]:
    """The way to an S3 server, for this process and those that it starts."""
    with ObjectStore() as store, FaultyBucket(store.port) as bucket:
        for name, value in store.environment(bucket.port).items():
            monkeypatch.setenv(name, value)
        yield bucket


def start(url: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.spark.bucket_app", "run", url],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(["src", "."])},
        start_new_session=True,
    )


@pytest.mark.heavy
@pytest.mark.timeout(1800)
def test_a_job_in_a_bucket_that_is_killed_while_it_writes_shows_every_row_once(bucket: FaultyBucket) -> None:
    url = f"{ObjectStore.url}/killed"
    storage = open_storage(url)
    for number in range(FILES):
        rows = range(number * ROWS_PER_FILE, (number + 1) * ROWS_PER_FILE)
        lines = [json.dumps({"user": f"u{row % 3}", "n": row}) + "\n" for row in rows]
        storage.put(f"in/{number:02d}.json", "".join(lines).encode())
    chance, killed = random.Random(38), 0
    for _ in range(KILLS):
        job, last = start(url), chance.randrange(8, 40)
        puts = 0

        def decide(request: Request, job: subprocess.Popen[str] = job, last: int = last) -> Fault:
            """The put of this number happens, and the job dies before it hears of it."""
            nonlocal puts
            puts += request.method == "PUT"
            if request.method == "PUT" and puts == last:
                os.killpg(job.pid, signal.SIGKILL)
                return Fault.LOST
            return Fault.NONE

        bucket.decide = decide
        job.communicate()
        killed += job.returncode == -signal.SIGKILL
    bucket.decide = lambda request: Fault.NONE
    job = start(url)
    said, _ = job.communicate()
    assert job.returncode == 0, said[-3000:]
    assert killed >= KILLS // 2, "too few kills struck before the job was done"
    names = [entry.name for entry in storage.list("copy/") if "_holdfast" not in entry.name]
    copied = [json.loads(line)["n"] for name in names for line in storage.get(name).splitlines()]
    assert sorted(copied) == list(range(FILES * ROWS_PER_FILE))
    files = [entry.name for entry in storage.list("out/") if "_holdfast" not in entry.name]
    tables = [pq.read_table(pa.BufferReader(storage.get(name))) for name in files]
    newest = {row["user"]: row["total"] for table in tables for row in table.to_pylist()}
    assert newest == {f"u{user}": sum(range(user, FILES * ROWS_PER_FILE, 3)) for user in range(3)}
