"""What do saves of single keys add to the latency of an epoch?

    python -m bench.uncoordinated --turns 3

The same job, at a steady pace, in turns: its keys saved on their own while they are dirty (`saving`), the
same but never due (`never due`: books are kept, nothing is saved), with a delta in every epoch
(`checkpointed`), and without any protection (`nothing`: at most once). Printed: the time from the start of an
epoch to its results, and what `saving` adds to `never due` and to `nothing`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import holdfast as hf
from bench.spark_baselines import session

KEYS, ROWS = 5_000, 20_000
PACE = "600ms"
WARM_UP_EPOCHS = 10
EPOCHS = 60
EVERY = "5s"
VARIANTS = ("nothing", "never due", "saving", "checkpointed")

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


def job_of(variant: str, place: Path) -> hf.Job:
    source = hf.GeneratorSource(
        {"k": f"pmod(xxhash64(id), {KEYS})", "value": "pmod(id, 10)"},
        schema="k long, value long",
        total=1 << 40,
    )
    protection = None
    if variant in ("saving", "never due"):
        every = EVERY if variant == "saving" else "1000h"
        protection = hf.Uncoordinated(storage=hf.FileStateStorage(place / "states"), every=every)
    job = hf.Job("latency")
    keyed = job.source(source, uid="ids").key_by("k")
    keyed.process(Totals(), uid="totals", protection=protection).sink(hf.MemorySink(), uid="out")
    return job


def measure(variant: str) -> Result:
    """Epoch times of one variant, in milliseconds."""
    seen: list[hf.Progress] = []
    with tempfile.TemporaryDirectory(prefix="holdfast-uncoordinated-") as root:
        place = Path(root)
        handle = job_of(variant, place).start(
            place / "ck",
            spark=session(),
            max_rows_per_epoch=ROWS,
            epoch_interval=PACE,
            working_dir=place / "w",
            guarantee="at-most-once" if variant == "nothing" else "exactly-once",
            on_progress=lambda p: seen.append(p) if p.epochs_run > len(seen) else None,
            on_message=lambda text: None,
        )
        while len(seen) < WARM_UP_EPOCHS + EPOCHS and handle.running:
            time.sleep(0.1)
        handle.stop()
        handle.wait()
    measured = seen[WARM_UP_EPOCHS : WARM_UP_EPOCHS + EPOCHS]
    return {
        "variant": variant,
        "epoch_ms": [p.epoch_seconds * 1_000 for p in measured],
        "task_ms": [sum(p.timings_ms.values()) for p in measured],
        "saved": measured[-1].own_keys.get("totals", {}).get("saved", 0),
    }


def summary(results: list[Result]) -> Result:
    found: Result = {}
    for variant in VARIANTS:
        own = [result for result in results if result["variant"] == variant]
        epochs = [ms for result in own for ms in result["epoch_ms"]]
        tasks = [ms for result in own for ms in result["task_ms"]]
        found[variant] = {
            "epoch_ms_p50": round(statistics.median(epochs)),
            "epoch_ms_p95": round(statistics.quantiles(epochs, n=20)[-1]),
            "task_ms_p50": round(statistics.median(tasks), 1),
            "saved": sum(result["saved"] for result in own),
        }
    for base in ("never due", "nothing"):
        ratio = found["saving"]["epoch_ms_p50"] / found[base]["epoch_ms_p50"] - 1
        found[f"added to {base}"] = f"{ratio:+.1%}"
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("bench-results/uncoordinated.json"))
    given = parser.parse_args()
    results = []
    for turn in range(given.turns):
        # Each one comes first as often as last: the machine warms up, or is busy, for all alike.
        for variant in VARIANTS if turn % 2 == 0 else VARIANTS[::-1]:
            results.append(measure(variant))
            p50 = statistics.median(results[-1]["epoch_ms"])
            print(f"turn {turn + 1}: {variant:<13} p50 {p50:.0f} ms", flush=True)
    found = summary(results)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(found, indent=2))
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
