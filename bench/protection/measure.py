"""Measures one case: a stretch in which all is well, then kills."""

from __future__ import annotations

import os
import random
import statistics
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from bench.node_process import Node, wait_for
from bench.protection.cases import FIRST_MS, Case
from bench.protection.cluster import ProtectedPart, Settings, protected_part
from bench.protection.commits import (
    Commit,
    CommitWatch,
    Wrong,
    bringing,
    distances,
    gap,
    latencies,
    lost_events,
    middle_and_bad,
    replayed,
    rows_of,
    within,
    wrong_in_windows,
)
from bench.protection.costs import per_row, used_by
from holdfast.clock import duration_ms

COMMITS_BEFORE = 3
"""Commits that are waited for before anything is measured, and after each kill."""
TRIES_PER_KILL = 3
LOOK_SECONDS = 0.2
"""Seldom, so as to take nothing from the nodes: all times are those of records."""

Result = dict[str, Any]


def measure(case: Case, settings: Settings, seed: int) -> Result:
    """All figures of a case."""
    chance, load = random.Random(seed), round(os.getloadavg()[0], 2)
    with protected_part(case, settings) as (part, place):
        watch = CommitWatch(part.directory)
        try:
            part.start_all()
            steady = _steady(part, watch, settings)
            kills = [_kill(case, part, watch, steady["usual_seconds"], chance) for _ in range(settings.kills)]
        finally:
            watch.close()
            part.close()
        wrong = _wrong(case, settings, place, watch.commits)
    return {
        "title": case.title, "kind": case.kind, "baseline": case.baseline, "nodes": 1 + case.spread,
        "load_before": load, "steady": steady, "kills": kills,
        "lost_rows": wrong.lost if wrong else None, "doubled_rows": wrong.doubled if wrong else None,
    }  # fmt: skip


def _steady(part: ProtectedPart, watch: CommitWatch, settings: Settings) -> Result:
    """What it costs while all is well."""
    _next_commits(watch, COMMITS_BEFORE)
    time.sleep(settings.warm_up)
    begin = _next_commits(watch, 1)
    before = {whose: used_by(sessions) for whose, sessions in part.sessions.items()}
    time.sleep(settings.stretch)
    end = _next_commits(watch, 1)
    used = {whose: used_by(sessions) - before[whose] for whose, sessions in part.sessions.items()}
    commits = within(bringing(watch.commits), begin, end)
    rows, seconds = rows_of(commits), end - begin
    return {
        "seconds": round(seconds, 1),
        "rows": rows,
        "kept_up": round(rows / (settings.rate * seconds), 3),
        "commits": len(commits),
        "usual_seconds": round(statistics.median(distances([begin, *(each.at for each in commits)])), 3),
        "latency_seconds": middle_and_bad(latencies(commits)),
        **{whose: per_row(each, rows) for whose, each in used.items()},
    }


def _next_commits(watch: CommitWatch, count: int) -> float:
    """Wait for that many more commits that bring something; when the last of them was made."""
    wanted = len(bringing(watch.commits)) + count
    wait_for(lambda: len(bringing(watch.commits)) >= wanted, "the part to commit", LOOK_SECONDS)
    return bringing(watch.commits)[wanted - 1].at


def _kill(case: Case, part: ProtectedPart, watch: CommitWatch, usual: float, chance: random.Random) -> Result:
    """What the loss of a node does. A kill after which the node of `main` took the part, because the new node
    was not there in time, is done again."""
    for _ in range(TRIES_PER_KILL):
        _next_commits(watch, COMMITS_BEFORE)
        time.sleep(chance.uniform(0, max(1.0, duration_ms(case.commit_every or "0s") / 1_000)))
        killed, replacement = part.kill_one(chance)
        newest_plan, term = watch.newest_plan, watch.commits[-1].term
        protected = _protected_again(part, watch, killed, replacement)
        replacement.give_way(0)
        _next_commits(watch, COMMITS_BEFORE)
        commits = watch.commits
        if protected is not None:
            times = [commit.at for commit in bringing(commits)]
            found = {
                "gap_seconds": round(gap(times, killed, protected, usual), 2),
                "replayed_rows": replayed(commits, term, newest_plan),
                "protected_seconds": round(protected - killed, 2),
            }
            print(f"{case.slug}: {found}", flush=True)
            return found
        print(f"{case.slug}: the new node came too late; this kill does not count", flush=True)
        part.settle()
    raise RuntimeError(f"{case.slug}: the new node came too late {TRIES_PER_KILL} times; raise --session")


def _protected_again(
    part: ProtectedPart, watch: CommitWatch, killed: float, replacement: Node
) -> float | None:
    """When the part commits and is as protected as before; None: the wrong node has taken it."""

    def home_has_it() -> bool:
        return any(record.node == part.home.name for record in part.taken_since(killed))

    def again() -> float | None:
        came = next((commit.at for commit in bringing(watch.commits) if commit.at > killed), None)
        protected = part.protected_at(killed, replacement)
        return None if came is None or protected is None else max(came, protected)

    wait_for(lambda: again() is not None or home_has_it(), "the part to be protected again", LOOK_SECONDS)
    # Its first commit may be seen before the record of its takeover is written.
    if part.takes_over:
        wait_for(lambda: bool(part.taken_since(killed)), "the failover to be written", LOOK_SECONDS)
    return None if home_has_it() else again()


def _wrong(case: Case, settings: Settings, place: Path, commits: list[Commit]) -> Wrong | None:
    """What is wrong with what was shown or kept; None: it cannot be told."""
    if case.kind == "uncoordinated":
        return Wrong(lost_events(commits), 0)
    if not case.window_seconds:
        return None
    size = case.window_seconds * 1_000
    rows = settings.rate * case.window_seconds
    return wrong_in_windows(shown_windows(place / "out"), FIRST_MS, size, rows)


def shown_windows(out: Path) -> dict[int, int]:
    """Begin of a window, in ms since 1970 -> rows in it, of all keys, as files show it."""
    if not any(out.glob("*.parquet")):
        return {}
    table = pq.read_table(out, columns=["window_start", "n"])
    starts = table["window_start"].cast(pa.timestamp("ms", tz=table["window_start"].type.tz)).cast(pa.int64())
    summed = pa.table({"start": starts, "n": table["n"]}).group_by("start").aggregate([("n", "sum")])
    return dict(zip(summed["start"].to_pylist(), summed["n_sum"].to_pylist(), strict=True))
