"""Keys that are saved on their own: drivers, workers and machines killed, and other numbers of shards.

What is lost is counted here against the input's formulas: a key's events less those of its save after the job
has come to its end, when everything that is left was saved.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast.ids import shard_ranges
from holdfast.state.encoding.keys import KeyCodec
from holdfast.state.encoding.routing import key_groups_of, routing_hash
from holdfast.state.files.saved_key import unpack
from tests.chaos.apps import Place, Shape
from tests.chaos.cluster import Cluster
from tests.chaos.control import asked
from tests.chaos.harness import Driver, Scenario
from tests.chaos.uncoordinated_app import CARTS, states
from tests.contract.state_storage_suite import all_saves

pytestmark = pytest.mark.timeout(900)

APP = "tests.chaos.uncoordinated_app"
SHAPE = Shape(epochs=20, rows=200, keys=50, shards=2)
KEY_GROUPS = 128
EVERY_NTH = ("--events", "5")
KEY = pa.schema([("key", pa.int64())])


def scenario(root: Path, *arguments: str, shape: Shape = SHAPE) -> Scenario:
    return Scenario(Place(root), shape, arguments, app=APP)


def reference(shape: Shape) -> Counter[int]:
    """Key -> events, by the formulas of the input."""
    return Counter(shape.key_of(event) for event in range(shape.events))


def lost(running: Scenario) -> dict[int, int]:
    """Key -> events of it that are in no save."""
    codec = KeyCodec(KEY)
    found = {
        codec.decode_key_bytes([id.key])[0][0].as_py(): unpack(data, id).events
        for id, data in all_saves(states(running.place), CARTS)
    }
    return {key: count - found.get(key, 0) for key, count in reference(running.shape).items()}


def told(running: Scenario) -> list[dict[str, Any]]:
    """What the job told of itself, life after life."""
    lines = (running.place.root / "told").read_text().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def status(running: Scenario) -> dict[str, int]:
    """What `holdfast status` says of the operator after the job has ended."""
    command = [sys.executable, "-m", "holdfast", "status", "--checkpoint", str(running.place.checkpoint)]
    found = subprocess.run([*command, "--json"], capture_output=True, text=True, check=True, timeout=120)
    numbers: dict[str, int] = json.loads(found.stdout)["checkpoint"]["own_keys"][CARTS]
    return numbers


def ends(driver: Driver, running: Scenario) -> None:
    assert driver.wait() == 0, driver.said()[-3000:] + running.history.story()
    driver.close()


def killed_after(running: Scenario, commit: int) -> float:
    """One life that is killed with its JVM and its Python workers; gives when."""
    driver = running.start()
    running.wait_for_commit(commit, driver)
    at = time.time()
    driver.close()
    return at


def test_a_driver_and_its_workers_killed_lose_nothing_while_the_working_state_is_there(
    tmp_path: Path,
) -> None:
    with scenario(tmp_path, *EVERY_NTH) as running:
        killed_after(running, 6)
        killed_after(running, 12)
        ends(running.start(), running)
        assert set(lost(running).values()) == {0}, running.history.story()
        assert status(running) == {"unsaved": 0, "lost": 0}


def test_a_machine_killed_with_its_disk_loses_the_interval_and_no_more_than_status_shows(
    tmp_path: Path,
) -> None:
    """Bounded by the interval, the epoch that finds a key due, and the time that saving takes."""
    every_seconds, slack_seconds = 3.0, 6.0
    shape = replace(SHAPE, epochs=90)
    with scenario(tmp_path, "--every", f"{every_seconds:g}s", "--pace", "300ms", shape=shape) as running:
        at = killed_after(running, 60)
        commits = [path.stat().st_mtime for path in (running.place.checkpoint / "commits").iterdir()]
        recent = sum(at - moment <= every_seconds + slack_seconds for moment in commits)
        shutil.rmtree(running.place.working)
        ends(running.start(), running)
        missing = lost(running)
        assert 0 < sum(missing.values()) <= status(running)["lost"]
        assert sum(missing.values()) <= (recent + 1) * shape.rows < shape.events / 2
        assert told(running)[-1]["own_keys"]["fetched"] == shape.keys


@pytest.mark.heavy
def test_another_number_of_shards_after_a_kill_loses_no_more_than_is_told(tmp_path: Path) -> None:
    """The copies of the shards that were stay behind: keys are fetched."""
    with scenario(tmp_path, *EVERY_NTH) as running:
        killed_after(running, 8)
        ends(running.start(shards=3), running)
        missing = lost(running)
        assert 0 < sum(missing.values()) <= status(running)["lost"]
        assert sum(missing.values()) < sum(reference(running.shape).values()) / 2


@pytest.mark.heavy
def test_rescaling_online_loses_nothing(tmp_path: Path) -> None:
    with scenario(tmp_path, *EVERY_NTH, shape=replace(SHAPE, epochs=40)) as running:
        driver = running.start()
        for shards in (3, 1, 2):
            running.wait_for_commit(max(running.commits(), default=0) + 4, driver)
            asked(running, "rescale", parallelism=shards)
        ends(driver, running)
        assert set(lost(running).values()) == {0}, running.history.story()
        assert status(running) == {"unsaved": 0, "lost": 0}
        assert told(running)[-1]["own_keys"]["fetched"] >= 3 * SHAPE.keys


@pytest.mark.heavy
def test_a_lost_machine_of_several_costs_the_keys_of_its_shards_alone(tmp_path: Path) -> None:
    shape = replace(SHAPE, epochs=24, shards=4)
    with (
        Cluster(tmp_path / "cluster") as cluster,
        scenario(tmp_path, *cluster.arguments(), *EVERY_NTH, shape=shape) as running,
    ):
        driver = running.start()
        running.wait_for_commit(8, driver)
        homes = told(running)[-1]["executors"]
        gone = homes[f"{CARTS}/0"]
        assert len(set(homes.values())) == 2, f"the shards are not spread: {homes}"
        running.history.add("nemesis", f"the machine of {gone} is lost")
        cluster.lose_machine(gone.partition(":")[2])
        ends(driver, running)
        missing = lost(running)
        hit = {shard for shard in range(shape.shards) if homes[f"{CARTS}/{shard}"] == gone}
        assert all(count >= 0 for count in missing.values()), missing
        assert {shard_of(key, shape) for key, count in missing.items() if count} <= hit
        assert 0 < sum(missing.values()) <= status(running)["lost"], running.history.story()


def shard_of(key: int, shape: Shape) -> int:
    group = key_groups_of(routing_hash([pa.array([key], pa.int64())]), KEY_GROUPS)[0]
    ranges = enumerate(shard_ranges(KEY_GROUPS, shape.shards))
    return next(shard for shard, groups in ranges if groups.first <= group < groups.end)
