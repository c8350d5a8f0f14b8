"""A job whose keys are saved on their own, to be killed: `python -m tests.spark.uncoordinated_app <root>`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import holdfast as hf
from tests.spark.jobs import SCHEMA, Sequence

ROWS = [(f"u{i % 7}", i) for i in range(500)]
EVERY_NTH = 5
ROWS_PER_EPOCH = 20


def carts(root: Path) -> hf.Job:
    protection = hf.Uncoordinated(storage=hf.FileStateStorage(root / "states"), events=EVERY_NTH)
    sink = hf.FileSink(root / "out", format="parquet")
    job = hf.Job("carts")
    stream = job.source(hf.MemorySource(ROWS, schema=SCHEMA), uid="rows").key_by("user")
    stream.process(Sequence(), uid="carts", protection=protection).sink(sink, uid="out")
    return job


def options(root: Path) -> dict[str, Any]:
    return {
        "until": "exhausted",
        "max_rows_per_epoch": ROWS_PER_EPOCH,
        "working_dir": root / "working",
        "restart": hf.NoRestart(),
    }


if __name__ == "__main__":
    where = Path(sys.argv[1])
    carts(where).run(where / "checkpoint", **options(where))
