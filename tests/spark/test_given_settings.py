"""What a user sets for Spark counts, wherever it is set; what is not set gets what suits epochs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.chaos.processes import QUICK_JVM
from holdfast.chaos.spark_cluster import spark_home

ROOT = Path(__file__).resolve().parents[2]
KEYS = ("spark.sql.session.timeZone", "spark.scheduler.mode", "spark.ui.showConsoleProgress")
OPENED = f"""
import json
from holdfast.runtime.spark_session import open_session
session = open_session("settings")
print(json.dumps({{key: session.conf.get(key) for key in {KEYS!r}}}))
"""
SETTING = "spark.sql.session.timeZone", "Europe/Lisbon"


@pytest.mark.parametrize("by", ["spark-submit", "spark-defaults.conf", "PYSPARK_SUBMIT_ARGS"])
def test_what_is_set_counts(by: str, tmp_path: Path) -> None:
    app = tmp_path / "app.py"
    app.write_text(OPENED)
    small = ["--master", "local[1]", "--driver-memory", "700m", "--conf", "spark.driver.host=127.0.0.1"]
    option = ["--conf", "=".join(SETTING)]
    others = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK")}
    environment = {
        **others,
        "PYTHONPATH": str(ROOT / "src"),
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYSPARK_SUBMIT_ARGS": " ".join(small + option * (by == "PYSPARK_SUBMIT_ARGS") + ["pyspark-shell"]),
        "SPARK_HOME": str(spark_home()),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_SUBMIT_OPTS": QUICK_JVM,
        "HOLDFAST_JVM_ARCHIVE": "off",
    }
    command = [sys.executable, str(app)]
    if by == "spark-submit":
        del environment["PYSPARK_SUBMIT_ARGS"]
        command = [str(spark_home() / "bin/spark-submit"), *small, *option, str(app)]
    if by == "spark-defaults.conf":
        (tmp_path / by).write_text(" ".join(SETTING))
        environment["SPARK_CONF_DIR"] = str(tmp_path)
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found == dict(zip(KEYS, [SETTING[1], "FAIR", "false"], strict=True))
