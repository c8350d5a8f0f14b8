"""One life of the job of `edges`, on a real Spark: `python -m tests.chaos.edge_app ROOT --layout ...`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import holdfast as hf
from tests.chaos.apps import Place, choose_spark
from tests.chaos.edges import Layout


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("root", type=Path)
    parser.add_argument("--shape", help="of the other crash tests; not used")
    parser.add_argument("--layout", type=Layout.from_json, required=True)
    parser.add_argument("--limit", type=int, required=True)
    parser.add_argument("--size", type=int, required=True)
    parser.add_argument("--interval", default=None)
    given = parser.parse_args()
    place = Place(given.root)
    choose_spark("local[2]", [], place)
    try:
        given.layout.declare(place.outputs, given.limit, fsync="on").run(
            place.checkpoint, until="exhausted", max_rows_per_epoch=given.size, parallelism=1, retain=50,
            checkpoint_interval=given.interval, restart=hf.NoRestart(), working_dir=place.working,
        )  # fmt: skip
    except hf.HoldfastError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
