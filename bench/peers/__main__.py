"""How fast is Holdfast beside PyFlink and bytewax?

    python -m bench.peers [--quick] [--rounds 5] [--out bench-results/peers.json]

A keyed running sum over the same rows, two cores, exactly once; each contender in processes of its own that
are started for it. Peers are optional: each has a Python environment of its own, which is made the first time
(and needs the network for that); one that cannot be had is left out, with a line that says why.

A contender notes how many rows were through, and when. Rows per second are those from the first row read to
the last one written, but the first quarter, in which Java compiles, does not count. Beside it: the same with
that quarter, and the seconds from the start of the first process to the end of the last. No figures are
printed of a run whose sums are wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from pathlib import Path

from bench.peers.comparison import ROUNDS, run


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.peers", description="Holdfast beside PyFlink and bytewax")
    parser.add_argument("--quick", action="store_true", help="few rows, once: does it work?")
    parser.add_argument("--rounds", type=int, help=f"how often each is run ({ROUNDS})")
    parser.add_argument("--out", type=Path, default=Path("bench-results/peers.json"))
    given = parser.parse_args()
    about = {
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}",
        "load_before": round(os.getloadavg()[0], 2),
    }
    found = {"about": about, **run(given.quick, given.rounds or (1 if given.quick else ROUNDS))}
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(found, indent=2))
    print(json.dumps(found["ratios"], indent=2))
    print(f"everything: {given.out}")


if __name__ == "__main__":
    main()
