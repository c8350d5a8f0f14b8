"""Writes docs/benchmarks.md and its pictures from the results of runs.

    python -m bench.report bench-results

Sections of which there are results are written again; all others of the page stay as they are.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench import plots

DOCS = Path(__file__).parents[1] / "docs"
KEPT_IN = {"files": "synced files", "redis": "a Redis that syncs every write"}
CONNECTORS = {
    "rows of a topic by KafkaSource beside Spark's own connector": "bench.kafka_source",
    "rows into a topic by KafkaSink beside an idempotent producer": "bench.kafka_sink",
    "an append by PostgresSink beside a plain COPY of the same rows": "bench.postgres",
    "Parquet files by FileSink beside `df.write.parquet`": "bench.file_sink",
    "publishing by two executors beside one": "bench.publishing",
    "the driver's memory and reading, while 10 GB of output pass": "bench.large_output",
    "rows from a socket and from RabbitMQ, logged and acknowledged, beside reading alone": "bench.received",
}
"""What each of them measures, for a list of those whose figures are not on the page."""
SOAKED = (
    "objects", "working_files", "shuffle_files", "driver_mb", "heap_mb", "driver_threads", "java_threads",
)  # fmt: skip


def page(former: str, sections: list[list[str]]) -> str:
    """The former page with these sections, each in the place of the one with its title or at the end."""
    head, *others = former.strip().split("\n\n## ")
    texts = {text.partition("\n")[0]: text for text in others}
    for section in sections:
        title = section[0].removeprefix("## ")
        texts[title] = "\n".join([title, *section[1:]])
    return "\n\n## ".join([head, *texts.values()]) + "\n"


def _throughput(found: dict[str, Any]) -> list[str]:
    return [
        "## A keyed running sum beside Spark's own ways",
        "",
        "![throughput](pictures/throughput.svg)",
        "",
        "100,000 keys, slices of 250,000 rows from Parquet files, one session with two cores. Medians of "
        f"{found['throughput'][0]['turns']} turns, in each of which everyone runs once.",
        "Spark's Python operators are slow, so they get smaller slices with as many rows for each key.",
        "",
        "| who (sink) | workload | ms per slice | by turn | rows/s |",
        "| --- | --- | --- | --- | --- |",
        *(
            f"| {r['name']} ({r['sink']}) | {r['workload']} | {r['ms_per_batch']:,} "
            f"| {r['ms_per_batch_min']:,} to {r['ms_per_batch_max']:,} | {r['rows_per_s']:,.0f} |"
            for r in found["throughput"]
        ),
        "",
        *_table("ratio", "measured", found["ratios"]),
    ]


def _peers(found: dict[str, Any]) -> list[str]:
    peers = found["peers"]
    lines = [
        "## A keyed running sum beside PyFlink and bytewax",
        "",
        "`python -m bench.peers`, and part of `make bench`: the same rows, two cores, exactly once, each in",
        "processes of its own. A peer is installed into an environment of its own the first time; one that",
        "cannot be had is left out. Rows per second from the first row read to the last one written; the",
        "first quarter, in which Java compiles, does not count. What can be compared, and what cannot:",
        "[decision 050](decisions/050-peers-in-the-benchmark.md).",
    ]
    lines += [
        "",
        "| who | rows | rows/s | by round | with warm-up | first row (s) | start to end (s) |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for each in peers["results"]:
        who = f"{each['name']} {each['version']}"
        if "rows" in each:
            shown = [f"{each[name]:,}" for name in ("rows", "rows_per_s")]
            shown.append(f"{each['rows_per_s_min']:,} to {each['rows_per_s_max']:,}")
            shown += [f"{each[name]:,}" for name in ("rows_per_s_with_warm_up", "first_row_s", "wall_s")]
        else:
            shown = [each["left_out"], *"-----"]
        lines.append(f"| {who} | {' | '.join(shown)} |")
    return [*lines, "", *_table("ratio", "measured", peers["ratios"])] if peers["ratios"] else lines


def _guarantees(found: dict[str, Any]) -> list[str]:
    costs = found["guarantees"]
    ratios = {name: value for name, value in costs.items() if "/" in name}
    return [
        "## What exactly-once costs",
        "",
        f"Medians of {costs['turns']} turns.",
        "",
        *_table(
            "local disk with fsync", "ms per slice", {k: round(v, 1) for k, v in costs["local_ms"].items()}
        ),
        "",
        *_table("checkpoint on an S3 test server on loopback", "ms per slice", costs["s3_ms"]),
        "",
        *_table("ratio", "measured", ratios),
        "",
        *_table("price of a safeguard, per shard and slice", "ms", found.get("safeguards_ms", {})),
    ]


def _growth(found: dict[str, Any]) -> list[str]:
    growth = found["state_growth"]
    small, large = growth[0], growth[-1]
    names = ("epoch_ms", "state_ms", "compute_ms", "delta_bytes", "snapshot_bytes", "restore_s")
    ratios = {
        name: f"{large[name] / small[name]:.2f}x"
        for name in ("epoch_ms", "state_ms", "delta_bytes", "restore_s")
    }
    return [
        "## As the state grows",
        "",
        "![growth](pictures/state-growth.svg)",
        "",
        "Epochs of 250,000 rows touching 50,000 keys. `state_ms`: opening and applying in the slowest task;",
        '`compute_ms`: the function with its lookups. `restore_s`: from "Spark is up" in a new process to',
        "the first commit, every byte of the snapshots verified. Each size has its own session, and filling",
        "a larger state leaves it warmer: the ratio of whole epochs flatters, that of state_ms does not.",
        "",
        f"| keys | {' | '.join(names)} |",
        f"| --- |{' --- |' * len(names)}",
        *(f"| {g['keys']:,} | {' | '.join(f'{g[name]:,}' for name in names)} |" for g in growth),
        "",
        *_table(f"{large['keys']:,} keys against {small['keys']:,}", "measured", ratios),
    ]


def _nexmark(found: dict[str, Any]) -> list[str]:
    about = found["about"]
    return [
        "## The queries of Nexmark beside Spark Structured Streaming",
        "",
        f"`make nexmark`, {about['started']}, load before: {about['load_before']}. Slices of "
        f"{about['slice']:,} events from Parquet files,",
        f"Parquet files out, one session with {about['cores']} cores, medians; every result is that of "
        "DuckDB.",
        "",
        "| query | Holdfast, events/s | Spark, events/s | ratio | Spark's way |",
        "| --- | --- | --- | --- | --- |",
        *(
            f"| {r['query']} | {r['holdfast']:,} | {r['spark']:,} | {r['ratio']:.2f} | {r['way']} |"
            for r in found["results"]
        ),
    ]


def _time_costs(found: dict[str, Any]) -> list[str]:
    titles = {
        "timers": "a value and a timer for each row, beside transformWithState",
        "panes": "a sliding window of 60 panes beside a tumbling one",
        "joins": "an interval join beside Spark's stream-stream join",
        "open-timers": "epochs with 100 timers due, by how many are open",
    }
    lines = [
        "## What event time costs",
        "",
        f"`python -m bench.time_costs`, load before: {found['load_before']}. Medians, one session.",
    ]
    for name in (each for each in titles if each in found):
        figures = {what: f"{value:,}" for what, value in found[name].items()}
        lines += ["", *_table(titles[name], "measured", figures)]
    return lines


def _combining(found: dict[str, Any]) -> list[str]:
    ways = ("by itself", "combined", "not combined")
    return [
        "## `aggregate` beside Spark's own aggregation, by keys",
        "",
        f"`python -m bench.combining`, load before: {found['load_before']}. How many times as fast as",
        "Spark's own: as Holdfast decides by itself whether rows are combined before the shuffle, always,",
        "never.",
        "",
        f"| workload | {' | '.join(ways)} |",
        "| --- | --- | --- | --- |",
        *(
            f"| {workload} | {' | '.join(str(figures[f'{way} / native']) for way in ways)} |"
            for workload, figures in found["results"].items()
        ),
    ]


def _latency(found: dict[str, Any]) -> list[str]:
    return [
        "## How long rows take beside Spark Structured Streaming",
        "",
        f"`make latency`, load before: {found['load_before']}. From the arrival of a row to its visibility,",
        "seconds: a running sum by key, a Parquet file with new rows every 100 ms, Parquet files out.",
        f"Medians of {found['results'][0]['turns']} turns, and the best and the worst of them.",
        "",
        "| who | rows/s | p50 | p95 | p99 |",
        "| --- | --- | --- | --- | --- |",
        *(
            f"| {r['name']} | {r['rate']:,} | "
            + " | ".join(f"{r[p]} ({r[f'{p}_min']} to {r[f'{p}_max']})" for p in ("p50", "p95", "p99"))
            + " |"
            for r in found["results"]
        ),
        "",
        *_table("ratio", "measured", found["ratios"]),
    ]


def _recovery(found: dict[str, dict[str, Any]]) -> list[str]:
    rows = []
    for each in found.values():
        where = "lost" if each["lost_working_state"] else "kept"
        for phase, taken in each["seconds"].items():
            times = f"{taken['p50']} | {taken['p95']} | {taken['max']}"
            rows.append(f"| {each['keys']:,} | {where} | {each['kills']} | {phase} | {times} |")
    return [
        "## From a kill to the next commit",
        "",
        "The driver is killed with SIGKILL and started again at once (`python -m bench.recovery`). *detect*:",
        "until its supervisor knows; *python*: until a new process has imported what it needs; *jvm*:",
        "until its JVM answers, with Spark's classes from an archive (`holdfast jvm-archive`); *spark*:",
        "until the Spark session is there; *restore*: until the shards have their state; *replay*: until the",
        "interrupted epoch is committed. Working state *kept*: same machine; *lost*: only the checkpoint is",
        "left. Seconds.",
        "",
        "![from a kill to the next commit](pictures/recovery.svg)",
        "",
        "| keys | working state | kills | phase | p50 | p95 | max |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        *rows,
    ]


def _failover(found: dict[str, dict[str, Any]]) -> list[str]:
    rows, bounds = [], []
    for each in found.values():
        who = f"{each['keys']:,} | {each['standby']}"
        for phase, taken in each["seconds"].items():
            rows.append(f"| {who} | {phase} | {taken['p50']} | {taken['p95']} | {taken['max']} |")
        bounds.append(
            f"| {who} | {each['kills']} | {each['median_epoch_seconds']} | {each['bound_seconds']} "
            f"| {each['within_bound']} | {each['restored_nothing']} |"
        )
    session = next(iter(found.values()))["session_seconds"]
    return [
        "## From the kill of a leader to the first commit of its standby",
        "",
        "The node that leads is killed with SIGKILL and a standby takes over (`python -m bench.failover`);",
        f"the session time-out is {session:g} s. *detect*: until ZooKeeper has ended the session and the",
        "standby has won the seat; *take over*: until the term is claimed; *restore*: until the checkpoint",
        "is loaded; *replay*: until the first new commit. Seconds.",
        "",
        "| keys | standby | phase | p50 | p95 | max |",
        "| --- | --- | --- | --- | --- | --- |",
        *rows,
        "",
        "The bound: session time-out + one tick of ZooKeeper + two median epochs + 1 s. *nothing to",
        "restore*: kills after which every shard's working state was at the committed version.",
        "",
        "| keys | standby | kills | median epoch (s) | bound (s) | within it | nothing to restore |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        *bounds,
    ]


def _savepoint(found: dict[str, Any]) -> list[str]:
    return [
        "## What a savepoint costs",
        "",
        f"{found['keys']:,} keys, {found['bytes'] / 1e6:,.0f} MB, local disk, the job at full speed",
        "(`python -m bench.savepoint_cost`). The copy reads, writes and syncs the same bytes.",
        "",
        *_table(
            "what", "measured", {key: value for key, value in found.items() if key not in ("keys", "bytes")}
        ),
    ]


def _uncoordinated(found: dict[str, Any]) -> list[str]:
    names = ("epoch_ms_p50", "epoch_ms_mean", "epoch_ms_p95", "task_ms_p50", "keys_saved_per_epoch")
    saves = {name.replace("_", " "): each for name, each in found["saves_add"].items()}
    against = found["saving_adds_to"]
    return [
        f"## What saves of single keys in {KEPT_IN[found['kept_in']]} add to an epoch",
        "",
        f"{found['keys']:,} keys, epochs of {found['rows']:,} rows every {found['pace']}, keys due",
        f"{found['every']} after they became dirty (`python -m bench.uncoordinated`), in {found['turns']}",
        "turns. The epoch is timed to its results, the task is the slowest of each. Keys that became dirty",
        "together are due together. What saves add is measured within a run, against its epochs beside which",
        "nothing was saved: variants that follow one another differ by more than saves add.",
        "",
        f"| | {' | '.join(names)} |",
        f"| --- |{' --- |' * len(names)}",
        *(
            f"| {name} | {' | '.join(f'{numbers[each]:,}' for each in names)} |"
            for name, numbers in found["variants"].items()
        ),
        "",
        *_table("saves add", "", saves),
        *(["", *_table("saving adds to the epochs of", "median", against)] if against else []),
    ]


def _soak(soak: list[dict[str, Any]]) -> list[str]:
    most = {name.replace("_", " "): max(sample[name] for sample in soak) for name in SOAKED}
    return [
        "## Over many epochs",
        "",
        "![soak](pictures/soak.svg)",
        "",
        f"{soak[-1]['epoch']:,} epochs of a small job with all there is (`python -m bench.soak` says what).",
        "",
        *_table("what", "at most", most),
    ]


def _connectors() -> list[str]:
    commands = {what: f"`python -m {module}`" for what, module in CONNECTORS.items()}
    return [
        "## Connectors",
        "",
        "Each is measured alone, on a quiet machine, and prints the machine, its load, medians, spreads and",
        "ratios.",
        "",
        *_table("what", "command", commands),
    ]


def _table(left: str, right: str, values: dict[str, Any]) -> list[str]:
    rows = [f"| {name} | {value} |" for name, value in values.items()]
    return [f"| {left} | {right} |", "| --- | --- |", *rows]


def sections(place: Path) -> list[list[str]]:
    """Of all the results in a directory."""
    found = []
    if (place / "results.json").exists():
        results = json.loads((place / "results.json").read_text())
        for name, make in OF_ONE_RUN.items():
            if name in results:
                about = results["about"][name]
                when = f"Measured on {about['started']}, {about['machine']}; load before: "
                found.append([*make(results), "", f"{when}{about['load_before']}."])
    for name, make in OF_FILES.items():
        if (place / name).exists():
            found.append(make(json.loads((place / name).read_text())))
    return [*found, _connectors()]


OF_ONE_RUN: dict[str, Callable[[Any], list[str]]] = {
    "throughput": _throughput, "peers": _peers, "guarantees": _guarantees, "state_growth": _growth,
}  # fmt: skip
OF_FILES: dict[str, Callable[[Any], list[str]]] = {
    "combining.json": _combining,
    "time-costs.json": _time_costs,
    "nexmark.json": _nexmark,
    "latency.json": _latency,
    "recovery.json": _recovery,
    "failover.json": _failover,
    "savepoint.json": _savepoint,
    "uncoordinated-files.json": _uncoordinated,
    "uncoordinated-redis.json": _uncoordinated,
    "soak.json": _soak,
}
"""What a bench writes, and its section."""


def main() -> None:
    place = Path(sys.argv[1])
    plots.draw(place)
    for name in plots.PICTURES:
        if (place / name).exists():
            shutil.copy(place / name, DOCS / "pictures" / name)
    written = DOCS / "benchmarks.md"
    written.write_text(page(written.read_text(), sections(place)))


if __name__ == "__main__":
    main()
