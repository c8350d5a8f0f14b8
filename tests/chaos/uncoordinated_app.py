"""A job with uncoordinated keys, to be hurt: `python -m tests.chaos.uncoordinated_app ROOT [options]`.

events -> carts (per key: how many) -> out
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import holdfast as hf
from tests.chaos.apps import Place, Shape, choose_spark, options

CARTS = "carts"


class Carts(hf.KeyedFunction):
    """Numbers the events of each key."""

    output = "event long, key long, seq long"
    seq = hf.ValueState("long", default=0)

    def process(self, row: Any, ctx: Any) -> Iterator[tuple[int, int, int]]:
        self.seq.value += 1
        yield row.event, row.key, self.seq.value


def states(place: Place) -> hf.FileStateStorage:
    return hf.FileStateStorage(place.root / "states")


def declare(place: Place, shape: Shape, protection: hf.Uncoordinated) -> hf.Job:
    job = hf.Job("carts-job")
    source = hf.GeneratorSource(
        {"event": "id", "key": f"id * 48271 % 2147483647 % {shape.keys}"},
        schema="event long, key long",
        total=shape.events,
    )
    carts = job.source(source, uid="events").key_by("key").process(Carts(), uid=CARTS, protection=protection)
    carts.sink(hf.FileSink(place.sink(CARTS), format="parquet"), uid="out")
    return job


def listener(path: Path) -> Callable[[hf.Progress], None]:
    """Appends to `path` what a run tells of itself."""

    def listen(progress: hf.Progress) -> None:
        if progress.executors:
            told = {
                "epoch": progress.epoch,
                "executors": progress.executors,
                "own_keys": progress.own_keys.get(CARTS),
            }
            with path.open("a") as file:
                file.write(json.dumps(told) + "\n")

    return listen


def main() -> None:
    """Run the job to its end. Exit codes are those of the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("root", type=Path)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--conf", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--shape", default="{}", help="fields of Shape, as JSON")
    parser.add_argument("--every")
    parser.add_argument("--events", type=int)
    parser.add_argument("--pace", help="the least time between epochs")
    given = parser.parse_args()
    place, shape = Place(given.root), Shape(**json.loads(given.shape))
    choose_spark(given.master, given.conf, place)
    protection = hf.Uncoordinated(storage=states(place), every=given.every, events=given.events)
    try:
        declare(place, shape, protection).run(
            **options(place, shape), epoch_interval=given.pace, on_progress=listener(place.root / "told")
        )
    except hf.HoldfastError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
