"""Holdfast and its peers, one after the other on the same rows: medians of some rounds, and ratios.

Always true: a peer without figures is in the results all the same, with the reason.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bench.peers.contenders import (
    BYTEWAX,
    PYFLINK,
    Contender,
    Trial,
    prepare_bytewax,
    prepare_pyflink,
    run_bytewax,
    run_holdfast,
    run_pyflink,
)
from bench.peers.environments import LeftOut
from bench.workload import FULL, Workload

QUICK = Workload(keys=1_000, rows=5_000)
QUICK_SLICES = 4
ROUNDS = 5
CONTENDERS = (
    Contender("holdfast process", partial(run_holdfast, "process"), slices=12),
    Contender("holdfast aggregate", partial(run_holdfast, "aggregate"), slices=12),
    Contender("bytewax", run_bytewax, prepare_bytewax, output="csv", slices=12, environment=BYTEWAX),
    Contender("PyFlink", run_pyflink, prepare_pyflink, output="csv", slices=4, environment=PYFLINK),
)
Result = dict[str, Any]


def measure(contender: Contender, quick: bool, rounds: int) -> Result:
    """Its figures, medians of the rounds; or why there are none."""
    workload, slices = (QUICK, QUICK_SLICES) if quick else (FULL, contender.slices)
    about = {"name": contender.name, "version": contender.version, "workload": str(workload)}
    paces, walls = [], []
    try:
        for _ in range(rounds):
            with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as place:
                pace, wall = contender.measure(Trial(Path(place), workload, slices))
            paces.append(pace)
            walls.append(wall)
    except LeftOut as why:
        if contender.environment is None:
            raise
        return {**about, "left_out": str(why)}
    rates = [pace.rows_per_s for pace in paces]
    return {
        **about,
        "rows": workload.rows * slices,
        "rounds": rounds,
        "rows_per_s": round(statistics.median(rates)),
        "rows_per_s_min": round(min(rates)),
        "rows_per_s_max": round(max(rates)),
        "rows_per_s_with_warm_up": round(statistics.median(each.rows_per_s_with_warm_up for each in paces)),
        "first_row_s": round(statistics.median(each.first_row_s for each in paces), 1),
        "wall_s": round(statistics.median(walls), 1),
    }


def ratios(results: Sequence[Result]) -> dict[str, float]:
    """How many times as fast as each peer that was measured."""
    rates = {each["name"]: each["rows_per_s"] for each in results if "left_out" not in each}
    ours = [name for name in rates if name.startswith("holdfast")]
    return {
        f"{name} / {peer}": round(rates[name] / rates[peer], 2)
        for peer in rates
        if peer not in ours
        for name in ours
    }


def run(quick: bool = False, rounds: int = ROUNDS) -> Result:
    """All contenders, one after the other; each prints its line."""
    results = []
    for contender in CONTENDERS:
        results.append(measure(contender, quick, rounds))
        print(line(results[-1]), flush=True)
    return {"results": results, "ratios": ratios(results)}


def line(result: Result) -> str:
    who = f"{result['name']} {result['version']}"
    if "left_out" in result:
        return f"{who}: left out: {result['left_out']}"
    return (
        f"{who:<28} {result['rows_per_s']:>10,} rows/s ({result['rows_per_s_min']:,} to "
        f"{result['rows_per_s_max']:,}), with warm-up {result['rows_per_s_with_warm_up']:,}; first row after "
        f"{result['first_row_s']} s, all done after {result['wall_s']} s"
    )
