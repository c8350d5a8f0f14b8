"""What do saves of single keys add to the latency of an epoch?

    python -m bench.uncoordinated --turns 3
    python -m bench.uncoordinated --turns 3 --redis redis://127.0.0.1:6379/0

The same job, at a steady pace, in turns: its keys saved on their own while they are dirty (`saving`); the
same with saving switched off, no key ever being due (`never due`); without any protection (`nothing`: at most
once); and with a delta in every epoch (`checkpointed`). Printed: the time from the start of an epoch to its
results, and

- what saves add: the mean of all epochs of a `saving` run against the mean of those beside which nothing was
  saved. Within one run: a machine that is faster one minute than the next does not count;
- how much longer than those the epochs take beside which keys are saved;
- what `saving` adds to the other variants: the median of the turns' ratios, each of medians.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import holdfast as hf
from bench.spark_baselines import session

KEYS, ROWS = 5_000, 20_000
PACE = "500ms"
WARM_UP_EPOCHS = 10
EPOCHS = 80
EVERY = "20s"
SAVING, NEVER_DUE, NOTHING, CHECKPOINTED = "saving", "never due", "nothing", "checkpointed"
VARIANTS = (NOTHING, NEVER_DUE, SAVING, CHECKPOINTED)

Result = dict[str, Any]


class Totals(hf.KeyedFunction):
    output = "k long, total long"
    total = hf.ValueState("long", default=0)
    count = hf.ValueState("long", default=0)

    def process(self, row: Any, ctx: Any) -> Iterator[tuple[int, int]]:
        self.total.value += row.value
        self.count.value += 1
        if self.count.value % 10 == 0:
            yield row.k, self.total.value


def job_of(variant: str, storage: hf.StateStorage) -> hf.Job:
    source = hf.GeneratorSource(
        {"k": f"pmod(xxhash64(id), {KEYS})", "value": "pmod(id, 10)"},
        schema="k long, value long",
        total=1 << 40,
    )
    protection = None
    if variant in (SAVING, NEVER_DUE):
        every = EVERY if variant == SAVING else "1000h"
        protection = hf.Uncoordinated(storage=storage, every=every)
    job = hf.Job("latency")
    keyed = job.source(source, uid="ids").key_by("k")
    keyed.process(Totals(), uid="totals", protection=protection).sink(hf.MemorySink(), uid="out")
    return job


def measure(variant: str, epochs: int, redis: str | None) -> Result:
    """Epoch times of one variant, in milliseconds."""
    seen: list[hf.Progress] = []
    with tempfile.TemporaryDirectory(prefix="holdfast-uncoordinated-") as root:
        place = Path(root)
        files = hf.FileStateStorage(place / "states")
        storage = hf.RedisStateStorage(redis, prefix=place.name) if redis else files
        handle = job_of(variant, storage).start(
            place / "ck",
            spark=session(),
            max_rows_per_epoch=ROWS,
            epoch_interval=PACE,
            working_dir=place / "w",
            guarantee="at-most-once" if variant == NOTHING else "exactly-once",
            on_progress=lambda p: seen.append(p) if p.epochs_run > len(seen) else None,
            on_message=lambda text: None,
        )
        while len(seen) < WARM_UP_EPOCHS + epochs and handle.running:
            time.sleep(0.1)
        handle.stop()
        handle.wait()
    measured = seen[WARM_UP_EPOCHS : WARM_UP_EPOCHS + epochs]
    saved = [p.own_keys.get("totals", {}).get("saved", 0) for p in measured]
    return {
        "variant": variant,
        "epoch_ms": [p.epoch_seconds * 1_000 for p in measured],
        "task_ms": [sum(p.timings_ms.values()) for p in measured],
        "saved_per_epoch": (saved[-1] - saved[0]) / (len(measured) - 1),
        "beside_saves": beside_saves(saved),
    }


def beside_saves(saved: list[int]) -> list[bool]:
    """Per epoch, whether keys were saved during it. Its result tells of the saves before it, too, and those
    that it began are told of by the next.
    """
    grew = [after > before for before, after in pairwise(saved)]
    return [before or after for before, after in zip([False, *grew], [*grew, False], strict=True)]


def added_by_saves(runs: list[Result]) -> Result:
    """What saves add to an epoch, from runs in which there were some."""
    shares = []
    epochs: dict[bool, list[float]] = {False: [], True: []}
    tasks: dict[bool, list[float]] = {False: [], True: []}
    for run in runs:
        marked = list(zip(run["beside_saves"], run["epoch_ms"], run["task_ms"], strict=True))
        alone = [ms for saving, ms, _ in marked if not saving]
        shares.append(statistics.mean(run["epoch_ms"]) / statistics.mean(alone) - 1)
        for saving, epoch_ms, task_ms in marked:
            epochs[saving].append(epoch_ms)
            tasks[saving].append(task_ms)
    beside, without = statistics.median(epochs[True]), statistics.median(epochs[False])
    return {
        "epochs_beside_saves": len(epochs[True]),
        "epochs_without": len(epochs[False]),
        "mean_added_by_turn": ", ".join(f"{share:+.1%}" for share in shares),
        "mean_added": f"{statistics.median(shares):+.1%}",
        "added_beside_saves": f"{beside / without - 1:+.1%}",
        "added_to_tasks_ms": round(statistics.median(tasks[True]) - statistics.median(tasks[False]), 1),
    }


def summary(results: list[Result], variants: Sequence[str]) -> Result:
    by_variant = {name: [r for r in results if r["variant"] == name] for name in variants}
    medians = {name: [statistics.median(r["epoch_ms"]) for r in by_variant[name]] for name in variants}
    shown = {}
    for name, own in by_variant.items():
        epochs = [ms for result in own for ms in result["epoch_ms"]]
        shown[name] = {
            "epoch_ms_p50": round(statistics.median(epochs)),
            "epoch_ms_mean": round(statistics.mean(epochs)),
            "epoch_ms_p95": round(statistics.quantiles(epochs, n=20)[-1]),
            "task_ms_p50": round(statistics.median(ms for r in own for ms in r["task_ms"]), 1),
            "keys_saved_per_epoch": round(statistics.mean(r["saved_per_epoch"] for r in own)),
        }
    added = {
        name: statistics.median(a / b for a, b in zip(medians[SAVING], medians[name], strict=True)) - 1
        for name in variants
        if name != SAVING
    }
    return {
        "keys": KEYS,
        "rows": ROWS,
        "pace": PACE,
        "every": EVERY,
        "turns": len(results) // len(variants),
        "variants": shown,
        "saves_add": added_by_saves(by_variant[SAVING]),
        "saving_adds_to": {name: f"{share:+.1%}" for name, share in added.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--beside", nargs="*", choices=VARIANTS, default=VARIANTS, help="saving, that is")
    parser.add_argument("--redis", metavar="URL", help="save there instead of in files")
    parser.add_argument("--out", type=Path, help="bench-results/uncoordinated-files.json, or -redis.json")
    given = parser.parse_args()
    variants = [each for each in VARIANTS if each == SAVING or each in given.beside]
    kept_in = "redis" if given.redis else "files"
    out = given.out or Path(f"bench-results/uncoordinated-{kept_in}.json")
    out.parent.mkdir(parents=True, exist_ok=True)
    # The JVM compiles what it runs often: the first run would pay for all others.
    measure(CHECKPOINTED, given.epochs, None)
    results = []
    for turn in range(given.turns):
        # Each one comes first as often as last: the machine warms up, or is busy, for all alike.
        for variant in variants if turn % 2 == 0 else variants[::-1]:
            results.append(measure(variant, given.epochs, given.redis))
            p50 = statistics.median(results[-1]["epoch_ms"])
            print(f"turn {turn + 1}: {variant:<13} p50 {p50:.0f} ms", flush=True)
        # After each turn, so that a run that is cut short has measured something.
        found = {"kept_in": kept_in, **summary(results, variants)}
        out.write_text(json.dumps(found, indent=2))
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
