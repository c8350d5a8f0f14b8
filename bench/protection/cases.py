"""The ways to protect a part that are compared, and the job that each of them protects.

    part `main`: ids at a steady rate -> part `counted`, protected: rows of each key, by windows of event time

A file `app.py`, which the nodes load, declares the job by the name of its case.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import holdfast as hf

JOB, PART = "guarded", "counted"
MAIN_SEAT, PART_SEAT = f"{JOB}.main", f"{JOB}.{PART}"
KEYS = 1_000
WINDOW_SECONDS = 10
SAVE_EVERY = "10s"
FIRST_MS = 1_767_225_600_000
"""Event time begins at a multiple of every window."""
COUNTED_PER_ROW = 20
"""The counter shows every so many rows of a key: about as many rows as windows do."""
APP = """
from pathlib import Path
from bench.protection.cases import job_of
job = job_of({slug!r}, {rate}, Path({place!r}))
"""


@dataclass(frozen=True, kw_only=True)
class Case:
    """`kind`: the protection. `commit_every`: the checkpoint interval; empty: every epoch is committed.
    `window_seconds`: of the windows; 0: a counter without windows. `spread`: how many nodes run the part or
    follow it. `baseline`: the case that latency is compared with."""

    slug: str
    title: str
    kind: str
    commit_every: str = ""
    window_seconds: int = WINDOW_SECONDS
    spread: int = 1
    baseline: str = "rollback"

    @property
    def seats(self) -> tuple[str, ...]:
        """Of the part."""
        members = self.spread if self.kind == "active" else 1
        return (PART_SEAT, *(f"{PART_SEAT}~{number}" for number in range(2, members + 1)))


def _passive(slug: str, every: str) -> Case:
    title = f"passive standby, commits {'every ' + every if every else 'of every epoch'}"
    return Case(slug=slug, title=title, kind="passive", commit_every=every, spread=2)


def _upstream(seconds: int) -> Case:
    title = f"upstream backup, windows of {seconds} s"
    return Case(slug=f"upstream-{seconds}s", title=title, kind="upstream", window_seconds=seconds)


def _active(k: int) -> Case:
    return Case(slug=f"active-{k}", title=f"active replicas, k={k}", kind="active", spread=k + 1)


_ALL = (
    Case(slug="rollback", title="rollback", kind="rollback"),
    _passive("passive-epoch", ""),
    _passive("passive-2s", "2s"),
    _passive("passive-5s", "5s"),
    _upstream(2),
    _upstream(10),
    _upstream(30),
    _active(1),
    _active(2),
    Case(
        slug="counter", title="rollback of a counter", kind="rollback", window_seconds=0, baseline="counter"
    ),
    Case(
        slug="uncoordinated", title=f"uncoordinated counter, keys saved after {SAVE_EVERY}",
        kind="uncoordinated", window_seconds=0, baseline="counter",
    ),
)  # fmt: skip
CASES = {case.slug: case for case in _ALL}


class Count(hf.KeyedFunction):
    """Counts the rows of a key."""

    output = "k long, n long"
    n = hf.ValueState("long", default=0)

    def process(self, row: Any, ctx: Any) -> Iterator[tuple[int, int]]:
        self.n.value += 1
        if self.n.value % COUNTED_PER_ROW == 0:
            yield row.k, self.n.value


def job_of(slug: str, rate: int, place: Path) -> hf.Job:
    """The job of a case. `rate`: rows per second, of the clock and of event time."""
    case, job = CASES[slug], hf.Job(JOB)
    part = job.part(PART, protection=_protection(case))
    columns = {
        "k": f"pmod(xxhash64(id), {KEYS})",
        "value": "pmod(id, 97)",
        "at": f"timestamp_millis({FIRST_MS} + id * 1000 div {rate})",
    }
    ids = hf.GeneratorSource(columns, schema="k long, value long, at timestamp", rows_per_second=rate)
    rows = job.source(ids, uid="ids").watermark("at", delay="0s").into(part, uid="ids-in")
    keyed, out = rows.key_by("k"), hf.FileSink(place / "out", format="parquet")
    if case.window_seconds:
        windows = keyed.window(hf.tumbling(f"{case.window_seconds}s"), on="at")
        windows.aggregate(uid="totals", n=hf.count(), total=hf.sum("value")).sink(out, uid="out")
        return job
    saving = None
    if case.kind == "uncoordinated":
        storage = hf.FileStateStorage(place / "states")
        saving = hf.Uncoordinated(storage=storage, every=SAVE_EVERY)
    keyed.process(Count(), uid="totals", protection=saving).sink(out, uid="out")
    return job


def _protection(case: Case) -> Any:
    if case.kind == "passive":
        return hf.PassiveStandby()
    if case.kind == "active":
        return hf.ActiveReplicas(k=case.spread - 1)
    if case.kind == "upstream":
        return hf.UpstreamBackup()
    return hf.Rollback()
