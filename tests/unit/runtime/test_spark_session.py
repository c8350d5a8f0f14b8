from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JError

from holdfast.errors import DefinitionError, RetryableError
from holdfast.runtime.spark_session import (
    own_settings,
    refuse_if_away,
    register_data_sources,
    require_java,
)


def test_missing_java_is_one_line_with_the_command_to_install_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DefinitionError, match="apt-get install openjdk-17") as error:
        require_java()
    assert "\n" not in str(error.value)


def test_a_wrong_java_home_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    with pytest.raises(DefinitionError, match=r"JAVA_HOME=.*nowhere"):
        require_java()


class Session:
    """A Spark session that lets two registrations meet, if they can."""

    def __init__(self) -> None:
        self.registered: list[str] = []
        self._both = threading.Barrier(2)

    @property
    def dataSource(self) -> Session:
        return self

    def register(self, source: Any) -> None:
        with contextlib.suppress(threading.BrokenBarrierError):
            self._both.wait(0.2)
        self.registered.append(source.name())


def test_parts_that_start_at_once_register_the_formats_once() -> None:
    session: Any = Session()
    parts = [threading.Thread(target=register_data_sources, args=(session,)) for _ in range(2)]
    for part in parts:
        part.start()
    for part in parts:
        part.join()
    assert sorted(session.registered) == ["holdfast", "holdfast-state"]


@pytest.mark.parametrize(
    ("given", "environment", "local"),
    [
        ({"spark.master": "local"}, {}, True),
        ({"spark.master": "local[*]"}, {}, True),
        ({"spark.master": "spark://host:7077"}, {}, False),
        ({"spark.master": "local-cluster[2,1,1024]"}, {}, False),
        ({"spark.master": "local[*]"}, {"PYSPARK_GATEWAY_PORT": "1"}, False),
        ({}, {"SPARK_REMOTE": "sc://host"}, False),
    ],
)
def test_workers_start_with_holdfast_imported_only_where_they_surely_find_it(
    given: dict[str, str], environment: dict[str, str], local: bool
) -> None:
    assert ("spark.python.daemon.module" in own_settings(given, environment)) is local


def test_what_the_user_has_set_is_left_alone() -> None:
    given = {"spark.master": "yarn", "spark.ui.enabled": "true", "spark.sql.adaptive.enabled": "true"}
    own = own_settings(given, {})
    assert not own.keys() & given.keys()
    assert own["spark.scheduler.mode"] == "FAIR"


def test_the_progress_that_spark_turns_on_by_itself_is_off() -> None:
    assert (
        own_settings({"spark.ui.showConsoleProgress": "true"}, {})["spark.ui.showConsoleProgress"] == "false"
    )


STOPPED = (
    "An error occurred while calling None.org.apache.spark.api.java.JavaSparkContext.\n"
    ": java.lang.IllegalStateException: Spark context stopped while waiting for backend\n"
    "\tat org.apache.spark.scheduler.TaskSchedulerImpl.waitBackendReady(TaskSchedulerImpl.scala:1265)\n"
)
UNPARSED = (
    "An error occurred while calling None.org.apache.spark.api.java.JavaSparkContext.\n"
    ": org.apache.spark.SparkException: Could not parse Master URL: 'spork://host:7077'\n"
    "\tat org.apache.spark.SparkContext$.org$apache$spark$SparkContext$$createTaskScheduler(S.scala:3232)\n"
)


def test_a_master_that_does_not_answer_is_named_and_worth_another_start() -> None:
    with pytest.raises(RetryableError) as told:
        refuse_if_away("spark://host:7077", Py4JError(STOPPED))
    said = "the Spark master spark://host:7077 does not answer (Spark has tried, and given up); see"
    assert str(told.value).startswith(said)
    assert (told.value.exit_code, "\n" in str(told.value)) == (75, False)


def test_a_cluster_that_cannot_be_connected_to_is_told_with_what_spark_says_of_it() -> None:
    refused = "java.net.ConnectException: Call From here to rm.example:8032 failed: Connection refused"
    with pytest.raises(
        RetryableError, match=r"master yarn does not answer \(ConnectException: Call From here"
    ):
        refuse_if_away("yarn", Py4JError(f"An error occurred\n: {refused}\n\tat org.apache.X.y(X.java:1)\n"))


@pytest.mark.parametrize(
    ("cluster", "text"), [("local[2]", STOPPED), ("", STOPPED), ("spork://host:7077", UNPARSED)]
)
def test_what_is_no_silence_of_a_cluster_is_left_as_it_is(cluster: str, text: str) -> None:
    refuse_if_away(cluster, Py4JError(text))
