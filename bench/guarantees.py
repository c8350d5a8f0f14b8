"""What does exactly-once cost, against at-most-once, on the common workload?

    python -m bench.guarantees

On local disk with fsync, and on an S3 endpoint (a test server on loopback, which is itself written in Python:
its figure
says how many requests an epoch makes, not how fast S3 is). The guarantees take turns, so that a drift of the
machine hits both.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import obstore
from obstore.store import S3Store

from bench.holdfast_runs import measure
from bench.spark_baselines import session
from bench.workload import FULL

SLICES = 9
TURNS = 5
GUARANTEES = ("at-most-once", "at-least-once", "exactly-once")


def run() -> dict[str, Any]:
    local: dict[str, list[float]] = {name: [] for name in GUARANTEES}
    remote: dict[str, list[float]] = {name: [] for name in ("at-most-once", "exactly-once")}
    # Before the session: workers get the environment that Spark was started with.
    with s3_endpoint() as bucket:
        spark = session()
        measure(spark, "aggregate", FULL, SLICES)
        for _ in range(TURNS):
            for name in GUARANTEES:
                local[name].append(measure(spark, "aggregate", FULL, SLICES, guarantee=name)["ms_per_batch"])
            for name in remote:
                checkpoint = f"{bucket}/{uuid.uuid4().hex}"
                found = measure(spark, "aggregate", FULL, SLICES, checkpoint=checkpoint, guarantee=name)
                remote[name].append(found["ms_per_batch"])
        spark.stop()
    here, there = (
        {name: statistics.median(spent) for name, spent in each.items()} for each in (local, remote)
    )
    return {
        "turns": TURNS,
        "local_ms": here,
        "exactly-once / at-most-once, local": round(here["exactly-once"] / here["at-most-once"], 3),
        "s3_ms": there,
        "exactly-once / at-most-once, s3": round(there["exactly-once"] / there["at-most-once"], 3),
    }


@contextmanager
def s3_endpoint() -> Iterator[str]:
    """A bucket on a test server on loopback, for the time of a measurement."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.environ.update(
        AWS_ENDPOINT_URL=f"http://127.0.0.1:{port}",
        AWS_ACCESS_KEY_ID="bench",
        AWS_SECRET_ACCESS_KEY="bench",
        AWS_REGION="us-east-1",
        AWS_ALLOW_HTTP="true",
    )
    try:
        _wait_for(port)
        import urllib.request

        made = urllib.request.Request(f"http://127.0.0.1:{port}/bench", method="PUT")
        urllib.request.urlopen(made).read()
        assert obstore.list(S3Store("bench")).collect() == []
        yield "s3://bench"
    finally:
        server.terminate()
        server.wait()


def _wait_for(port: int) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise TimeoutError(f"the S3 test server did not open port {port} within 30 s")


if __name__ == "__main__":
    print(json.dumps(run(), indent=2))
