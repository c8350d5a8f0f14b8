"""What the state backends cost beside one another: `python -m bench.backends [directory]`.

One shard of 500,000 entries. An epoch opens it, reads 50,000 random keys, writes them and closes it: what a
task does. Then a snapshot of it, and a restore from that snapshot up to the first complete check. Prints
milliseconds and, in parentheses, the ratio to LMDB; each is the median of a few.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from holdfast.state.contract import EMPTY_VERSION, DeltaStep, Entries, SnapshotSource, StateTarget, Version
from holdfast.state.local.backends import MEMORY_DIR, backend_named, open_state

BACKENDS = ("lmdb", "memory", "rocksdb")
ENTRIES, TOUCHED, EPOCHS, VALUE_BYTES, GROUPS = 500_000, 50_000, 9, 40, 64


def key(number: int) -> bytes:
    return (number % GROUPS).to_bytes(2, "big") + number.to_bytes(8, "big")


def never() -> Entries:
    raise AssertionError("the state was rebuilt")


def measured(backend: str, root: Path) -> dict[str, float]:
    """Median milliseconds by what was done."""
    chance = random.Random(1)
    laps: dict[str, list[float]] = {}

    def lap(name: str, work: Callable[[], object]) -> None:
        begun = time.perf_counter()
        work()
        laps.setdefault(name, []).append((time.perf_counter() - begun) * 1_000)

    version = Version(1, 1, "a")
    filled: Entries = sorted((key(number), bytes(VALUE_BYTES)) for number in range(ENTRIES))
    first = DeltaStep(version, EMPTY_VERSION, lambda: filled)
    open_state(
        root / "shard", "bench", StateTarget(version, 0, GROUPS, (), (first,), 1), backend=backend
    ).close()
    for epoch in range(2, 2 + EPOCHS):
        keys = sorted(key(number) for number in chance.sample(range(ENTRIES), TOUCHED))
        entries: Entries = [(each, chance.randbytes(VALUE_BYTES)) for each in keys]
        parent, version = version, Version(epoch, 1, "a")
        target = StateTarget(parent, 0, GROUPS, (), (DeltaStep(parent, EMPTY_VERSION, never),), parent.epoch)
        begun = time.perf_counter()
        state = open_state(root / "shard", "bench", target, backend=backend)
        laps.setdefault("open", []).append((time.perf_counter() - begun) * 1_000)
        lap("read", lambda: state.get_many(keys))  # noqa: B023
        lap("write", lambda: state.apply(parent, version, entries, parent.epoch))  # noqa: B023
        lap("close", state.close)
    for number in range(3):
        path = root / f"snapshot-{number}"
        target = StateTarget(
            version, 0, GROUPS, (), (DeltaStep(version, EMPTY_VERSION, never),), version.epoch
        )
        state = open_state(root / "shard", "bench", target, backend=backend)
        begun = time.perf_counter()
        info = state.snapshot(path)
        laps.setdefault("snapshot", []).append((time.perf_counter() - begun) * 1_000)
        state.close()
        kind = backend_named(backend).snapshots
        source = SnapshotSource(version, 0, GROUPS, path, info.length, info.chunk_bytes, info.chunks, kind)

        def restore() -> None:
            whole = StateTarget(version, 0, GROUPS, (source,), (), version.epoch)  # noqa: B023
            restored = open_state(root / f"restored-{number}", "bench", whole, backend=backend)  # noqa: B023
            restored.get_many(keys)
            restored.verify_base()
            restored.close()

        lap("restore", restore)
    laps["epoch"] = [sum(laps[name][i] for name in ("open", "read", "write", "close")) for i in range(EPOCHS)]
    return {name: median(times) for name, times in laps.items()}


def main() -> None:
    on_disk = sys.argv[1] if len(sys.argv) > 1 else None
    results = {}
    for backend in BACKENDS:
        parent = str(MEMORY_DIR) if backend == "memory" else on_disk
        with tempfile.TemporaryDirectory(dir=parent) as root:
            results[backend] = measured(backend, Path(root))
    print(f"{'ms (ratio to lmdb)':<20}" + "".join(f"{backend:>20}" for backend in BACKENDS))
    for name, base in results["lmdb"].items():
        cells = [f"{results[b][name]:.1f} ({results[b][name] / base:.2f})" for b in BACKENDS]
        print(f"{name:<20}" + "".join(f"{cell:>20}" for cell in cells))


if __name__ == "__main__":
    main()
