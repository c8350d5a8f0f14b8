"""One life of some queries of Nexmark, on a real Spark: `python -m tests.chaos.nexmark_app ROOT ...`.

They are one job, each with a sink of its own.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import holdfast as hf
from bench.nexmark.queries import job
from bench.nexmark.small_inputs import small_input
from bench.nexmark.source import NexmarkSource
from holdfast.chaos.inside.child import tightened
from tests.chaos.apps import Place, Shape, choose_spark, options


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("root", type=Path)
    parser.add_argument("--queries", required=True, help="numbers with commas between them")
    parser.add_argument("--shape", required=True, help="fields of Shape, as JSON: how much is read")
    parser.add_argument("--forgetful-sink", action="store_true", help="sinks do not know what they show")
    given = parser.parse_args()
    place, shape = Place(given.root), Shape(**json.loads(given.shape))
    queries = [int(query) for query in given.queries.split(",")]
    settings = small_input(queries[0])
    choose_spark("local[2]", [], place)
    sinks = {query: _sink(place.sink(f"q{query}"), given.forgetful_sink) for query in queries}
    nexmark = job(NexmarkSource(settings, shape.events), sinks, settings.disorder_us)
    try:
        with tightened():
            nexmark.run(**options(place, shape))
    except hf.HoldfastError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(error.exit_code)


def _sink(directory: Path, forgetful: bool) -> hf.Sink:
    if not forgetful:
        return hf.FileSink(directory, format="parquet")
    from tests.chaos.doubles import AppendingSink

    return AppendingSink(directory, 0, "ignored", "untold")


if __name__ == "__main__":
    main()
