"""The driver of every Nexmark query is killed three times on its way; the result is what DuckDB finds.

Some queries are one job, and suffer its kills together; with HOLDFAST_NEXMARK_ALONE=1 (`make nexmark-kills`)
each is a job of its own. Which steps are struck, and when, is drawn from HOLDFAST_NEXMARK_SEED and the
queries; each kill is told with the epoch that it struck in.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bench.nexmark.expected import differences, expected_rows, without_zones
from bench.nexmark.queries import QUERIES
from bench.nexmark.small_inputs import GROUPS, small_input
from holdfast.checkpoint.chain.history import History
from holdfast.checkpoint.store import names
from holdfast.steps import Step
from holdfast.storage.urls import open_storage
from tests.chaos.apps import Place, Shape
from tests.chaos.harness import Scenario, show
from tests.chaos.nemesis import Fault

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(1200)]

ALONE = "HOLDFAST_NEXMARK_ALONE" in os.environ
SEED = int(os.environ.get("HOLDFAST_NEXMARK_SEED", "1"))
JOBS = tuple((query,) for query in QUERIES) if ALONE else GROUPS

KILLS = 3
PASSES = (2, 4)
"""A life ends in an epoch from its second, so that each gets further than the one before, to its fourth, so
that all of them end before the input does."""
SHAPE = Shape(epochs=KILLS * PASSES[1], rows=400)
STEPS = (
    Step.PLAN_WRITTEN,
    Step.RESULTS_CHOSEN,
    Step.BUNDLE_WRITTEN,
    Step.BEFORE_COMMIT,
    Step.COMMIT_WRITTEN,
    Step.BEFORE_PUBLISH,
    Step.SINK_PUBLISHED,
)
"""Those that every epoch of every query passes in the driver: once, but for the last, once for each sink."""

Queries = tuple[int, ...]


def faults(queries: Queries) -> Iterator[Fault]:
    """A different step for each life."""
    chance = random.Random(f"{SEED} {queries}")
    for step in chance.sample(STEPS, KILLS):
        passes = chance.randint(*PASSES)
        if step is Step.SINK_PUBLISHED:
            passes = (passes - 1) * len(queries) + chance.randint(1, len(queries))
        yield Fault(step, passes)


def app(queries: Queries, root: Path, *arguments: str) -> Scenario:
    given = ("--queries", ",".join(map(str, queries)), *arguments)
    return Scenario(Place(root), SHAPE, given, app="tests.chaos.nexmark_app")


def run_killed(scenario: Scenario, kills: Iterable[Fault]) -> list[str]:
    """The job, killed and started again until it is done; tells where each kill struck."""
    told = []
    for fault in kills:
        scenario.suffer(fault)
        planned, committed = got_to(scenario.place)
        assert committed < SHAPE.epochs, f"{fault} came when all was committed{scenario.history.story()}"
        told.append(f"{fault.step} in epoch {planned} ({committed} committed)")
    driver = scenario.start()
    code = driver.wait()
    assert code == 0, f"the last life failed with {code}: {driver.last_words()}{scenario.history.story()}"
    return told


def got_to(place: Place) -> tuple[int, int]:
    """The newest epoch that is planned, and the newest that is committed."""
    plans = (place.checkpoint / names.PLANS).iterdir()
    commits = place.checkpoint / names.COMMITS
    committed = History(open_storage(str(place.checkpoint))).load().last_epoch if commits.exists() else 0
    return max(int(path.name) for path in plans), committed


def wrong_rows(query: int, place: Place) -> list[str]:
    """How what the query's sink shows differs from the result over all events."""
    events = small_input(query).table(0, SHAPE.events)
    assert expected_rows(query, events).num_rows, "an empty result proves nothing"
    files = [pq.ParquetFile(file).read() for file in sorted(place.sink(f"q{query}").glob("*.parquet"))]
    return differences(query, events, pa.concat_tables(map(without_zones, files)))


@pytest.mark.parametrize("queries", JOBS, ids=lambda queries: "q" + "-".join(map(str, queries)))
def test_queries_that_are_killed_three_times_give_what_duckdb_finds(
    queries: Queries, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with app(queries, tmp_path) as scenario:
        told = run_killed(scenario, faults(queries))
        wrong = {query: found for query in queries if (found := wrong_rows(query, scenario.place))}
        assert wrong == {}, scenario.history.story()
    assert len(told) >= KILLS
    show(f"q{', q'.join(map(str, queries))}: killed at {', '.join(told)}; right", capsys)


def test_a_sink_that_does_not_know_what_it_shows_is_found_out(tmp_path: Path) -> None:
    """Kills strike where a safeguard is needed, and the comparison says so when it is missing."""
    with app((0,), tmp_path, "--forgetful-sink") as scenario:
        run_killed(scenario, [Fault(Step.SINK_PUBLISHED, 2)])
        assert any(row.startswith("surplus") for row in wrong_rows(0, scenario.place))
