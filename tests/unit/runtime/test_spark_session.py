from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import DefinitionError
from holdfast.runtime.spark_session import is_surely_local, register_data_sources, require_java


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
    ("environment", "local"),
    [
        ({}, True),
        ({"PYSPARK_SUBMIT_ARGS": "--master local[2] --conf a=b pyspark-shell"}, True),
        ({"PYSPARK_SUBMIT_ARGS": "--conf spark.master=local pyspark-shell"}, True),
        ({"PYSPARK_SUBMIT_ARGS": "--master spark://host:7077 pyspark-shell"}, False),
        ({"PYSPARK_SUBMIT_ARGS": "--master=local-cluster[2,1,1024] pyspark-shell"}, False),
        ({"SPARK_REMOTE": "sc://host"}, False),
        ({"PYSPARK_GATEWAY_PORT": "1"}, False),
    ],
)
def test_workers_start_with_holdfast_imported_only_where_they_surely_find_it(
    environment: dict[str, str], local: bool
) -> None:
    assert is_surely_local(environment) is local


def test_a_master_may_be_named_by_the_settings_of_spark(tmp_path: Path) -> None:
    assert is_surely_local({"SPARK_CONF_DIR": str(tmp_path)})
    (tmp_path / "spark-defaults.conf").write_text("spark.master spark://host:7077\n")
    assert not is_surely_local({"SPARK_CONF_DIR": str(tmp_path)})
    (tmp_path / "conf").mkdir()
    (tmp_path / "spark-defaults.conf").rename(tmp_path / "conf" / "spark-defaults.conf")
    assert not is_surely_local({"SPARK_HOME": str(tmp_path)})
