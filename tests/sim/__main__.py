"""Many seeds, then every negative control; or one seed and its story. `--parts`: of a job in parts;
`--replicas`: of a part that a set of replicas leads.

python -m tests.sim [--parts | --replicas] --seeds 10000
python -m tests.sim [--parts | --replicas] --seed 4711 [--control no-floor]
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from tests.sim.parts.runs import SIMULATION as OF_PARTS
from tests.sim.replicas.runs import SIMULATION as OF_REPLICAS
from tests.sim.runs import SIMULATION
from tests.sim.scheduler import on_one_core
from tests.sim.seeds import Found, Simulation

CONTROL_SEEDS_MAX = 1_000
PROGRESS_EVERY = 1_000


def main() -> int:
    options = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    options.add_argument("--seeds", type=int, default=10_000, help="how many seeds to run")
    options.add_argument("--first", type=int, default=0, help="the first of them")
    options.add_argument("--seed", type=int, help="run this one alone and tell its story")
    kind = options.add_mutually_exclusive_group()
    kind.add_argument("--parts", action="store_true", help="of a job in parts, with channels and barriers")
    kind.add_argument("--replicas", action="store_true", help="of a part that a set of replicas leads")
    options.add_argument("--control", default="", help="take this safeguard away")
    options.add_argument("--stretch", type=int, default=1, help="make every simulation so many times longer")
    given = options.parse_args()
    what = OF_PARTS if given.parts else OF_REPLICAS if given.replicas else SIMULATION
    if given.control and given.control not in what.controls:
        options.error(f"--control {given.control}: choose from {', '.join(sorted(what.controls))}")
    with on_one_core():
        if given.seed is not None:
            return _tell(what, given.seed, given.control, given.stretch)
        if given.control:
            return _hunt_all(what, [given.control])
        seeds = range(given.first, given.first + given.seeds)
        return _run_all(what, seeds, given.stretch) or _hunt_all(what, list(what.controls))


def _tell(what: Simulation, seed: int, control: str, stretch: int) -> int:
    try:
        world = what.run(seed, control, stretch)
    except Found as found:
        print("\n".join(found.story))
        print(f"VIOLATION  {found}")
        return 1
    print("\n".join(world.told()))
    print(f"green: seed {seed}")
    return 0


def _run_all(what: Simulation, seeds: range, stretch: int) -> int:
    seen: Counter[str] = Counter()
    began = time.perf_counter()
    for done, seed in enumerate(seeds, 1):
        try:
            seen.update(what.run(seed, "", stretch).seen)
        except Found as found:
            print("\n".join(found.story[-60:]))
            print(f"VIOLATION after {done} seeds  {found}")
            return 1
        if done % PROGRESS_EVERY == 0 or done == len(seeds):
            rate = done / (time.perf_counter() - began)
            print(f"{done:7,d} of {len(seeds):,d} seeds green, {rate:,.0f} seeds/s", flush=True)
    print("what happened in them:")
    for happening, count in sorted(seen.items()):
        print(f"  {count:9,d}  {happening}")
    return 0


def _hunt_all(what: Simulation, controls: list[str]) -> int:
    print("negative controls:")
    missed = 0
    for control in controls:
        try:
            found = what.hunt(control, CONTROL_SEEDS_MAX)
        except AssertionError as problem:
            missed += 1
            print(f"  MISSED  {control}: {problem}")
            continue
        print(f"  found at seed {found.seed:4d}  {control}: {found.problem}")
    if len(controls) == 1 and not missed:
        print(f"its story: {found.again}")
    print("verdict: " + (f"{missed} controls not found" if missed else "green, and every control found"))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
