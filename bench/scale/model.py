"""What an epoch costs with more executors than were measured: sums of costs, found by least squares.

    driver  = a + b operators + c tasks + d sinks                                  one after the other
    epoch   = driver + a + b operators + c sinks + (d tasks + e rows + f keys) / cores

What the driver does was measured as its CPU time and does not get faster with executors. The rest of an epoch
is what the executors do side by side, and what is waited for. A task is an operator's in one shard.

Never here: measuring, or figures that were not given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.scale.points import Point

Feature = Callable[[Point, int], float]
Result = dict[str, Any]

FEATURES: Mapping[str, Feature] = {
    "an epoch": lambda point, cores: 1.0,
    "an operator": lambda point, cores: point.operators,
    "a task": lambda point, cores: point.tasks,
    "a sink": lambda point, cores: point.sinks,
    "100 key groups": lambda point, cores: point.groups / 100,
    "a task, by cores": lambda point, cores: point.tasks / cores,
    "1,000 rows, by cores": lambda point, cores: point.rows_of_operators / cores / 1_000,
    "1,000 touched keys, by cores": lambda point, cores: point.keys_of_operators / cores / 1_000,
}
"""Of a point, where so many tasks run at the same time."""

MODELS: Mapping[str, tuple[str, ...]] = {
    "driver_cpu_ms": ("an epoch", "an operator", "a task", "a sink"),
    "rest_ms": (
        "an epoch", "an operator", "a sink", "a task, by cores", "1,000 rows, by cores",
        "1,000 touched keys, by cores",
    ),
    "result_bytes": ("an epoch", "a task"),
    "commit_bytes": ("an epoch", "a task", "a sink", "100 key groups"),
    "files_per_epoch": ("an epoch", "a task", "a sink"),
    "heap_mb": ("an epoch", "a task"),
}  # fmt: skip

LIMITS: Mapping[str, tuple[float, str]] = {
    "driver_cpu_ms": (1_000, "the driver's own work (tasks scheduled, results taken): a second for an epoch"),
    "result_bytes": (
        2.0**30,
        "results of tasks: 1 GiB, Spark's limit for a job (spark.driver.maxResultSize)",
    ),
    "commit_bytes": (10e6, "the commit record: 10 MB, a tenth of a second to write"),
    "files_per_epoch": (3_500, "objects: what a prefix of an S3 bucket takes in a second"),
    "heap_mb": (4_096, "the driver's heap: 4 GB"),
}
"""At which an epoch of a second is not possible any more, or not without other settings."""
EXTRAPOLATED = (4, 100, 1_000)
GROUPS_PER_SHARD = 4
EXECUTORS_MAX = 1_000_000


@dataclass(frozen=True)
class Fit:
    """What each thing adds, and how far the model is from what was measured."""

    target: str
    costs: Mapping[str, float]
    measured: tuple[float, ...]
    residuals: tuple[float, ...]

    @property
    def explained(self) -> float:
        """The share of the spread that the model explains; 1: all of it."""
        spread = float(np.var(self.measured))
        return 1.0 - float(np.mean(np.square(self.residuals))) / spread if spread else 1.0

    @property
    def typical_residual(self) -> float:
        return float(np.sqrt(np.mean(np.square(self.residuals))))

    def at(self, point: Point, cores: int) -> float:
        return sum(cost * FEATURES[name](point, cores) for name, cost in self.costs.items())


class Undetermined(Exception):
    """Figures that do not tell costs apart."""


def fit(target: str, results: Sequence[Result]) -> Fit:
    """The costs with which the model comes nearest to what was measured. Undetermined: others do as well."""
    points = [point_of(result) for result in results]
    names = MODELS[target]
    rows = np.array([[FEATURES[name](point, point.cores) for name in names] for point in points])
    if np.linalg.matrix_rank(rows) < len(names):
        raise Undetermined("there is no model of so few figures: it needs those of every axis")
    values = np.array([_value(result, target) for result in results], dtype=np.float64)
    costs = np.linalg.lstsq(rows, values, rcond=None)[0]
    return Fit(
        target,
        dict(zip(names, costs.tolist(), strict=True)),
        tuple(values.tolist()),
        tuple((values - rows @ costs).tolist()),
    )


def fit_all(results: Sequence[Result]) -> dict[str, Fit]:
    return {target: fit(target, results) for target in MODELS}


def point_of(result: Result) -> Point:
    return Point(**{name: result[name] for name in Point.__dataclass_fields__})


def _value(result: Result, target: str) -> float:
    if target == "rest_ms":
        return float(result["epoch_ms"] - result["driver_cpu_ms"])
    return float(result[target])


def grown(usual: Point, executors: int) -> Point:
    """The same job with as many rows and touched keys for each executor, and enough key groups."""
    groups = usual.groups
    while groups < executors * GROUPS_PER_SHARD:
        groups *= 2
    share = executors / usual.executors
    return Point(
        keys=round(usual.keys * share),
        executors=executors,
        groups=groups,
        operators=usual.operators,
        sinks=usual.sinks,
        rows=round(usual.rows * share),
        touched=round(usual.touched * share),
    )


def foreseen(fits: Mapping[str, Fit], usual: Point, executors: int) -> dict[str, float]:
    """What the models say of so many executors, all of whose cores are there."""
    point = grown(usual, executors)
    found = {target: max(0.0, each.at(point, executors)) for target, each in fits.items()}
    return {"epoch_ms": found["driver_cpu_ms"] + found["rest_ms"], **found}


def gives_way(fits: Mapping[str, Fit], usual: Point) -> list[tuple[str, int | None]]:
    """What is at its limit with how many executors, the first first. None: with none that anybody has."""
    found = [(target, _executors_at(fits, usual, target)) for target in LIMITS]
    return sorted(found, key=lambda each: EXECUTORS_MAX + 1 if each[1] is None else each[1])


def _executors_at(fits: Mapping[str, Fit], usual: Point, target: str) -> int | None:
    limit = LIMITS[target][0]

    def reached(executors: int) -> bool:
        return fits[target].at(grown(usual, executors), executors) >= limit

    if not reached(EXECUTORS_MAX):
        return None
    low, high = 0, EXECUTORS_MAX
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if reached(middle) else (middle, high)
    return high
