from __future__ import annotations

import os
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import MachineError
from holdfast.runtime import jvm_archive
from holdfast.runtime.jvm_archive import JVM_OPTIONS, KEPT, SWITCH, find_archive, make, prepare_jvm


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Java, a Spark and a cache of the test's own."""
    for place in ("java/bin", "spark/jars", "cache"):
        (tmp_path / place).mkdir(parents=True)
    (tmp_path / "java/bin/java").write_text("#!/bin/sh\n")
    (tmp_path / "java/bin/java").chmod(0o755)
    (tmp_path / "spark/jars/spark-core.jar").write_bytes(b"classes")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "spark"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in (JVM_OPTIONS, SWITCH, "SPARK_REMOTE", "PYSPARK_GATEWAY_PORT"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture(autouse=True)
def later(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """After how many seconds an archive was to be made beside the run."""
    asked: list[float] = []

    class Timer:
        def __init__(self, seconds: float, call: Any) -> None:
            self._seconds = seconds

        def start(self) -> None:
            asked.append(self._seconds)

    monkeypatch.setattr(jvm_archive.threading, "Timer", Timer)
    return asked


@pytest.fixture
def recording(monkeypatch: pytest.MonkeyPatch) -> None:
    """A JVM that records its classes at once."""

    def recorded(file: Path, place: str) -> str:
        file.write_bytes(os.urandom(1_000))
        return ""

    monkeypatch.setattr(jvm_archive, "_recorded", recorded)


def test_a_jvm_is_given_the_archive_once(recording: None, later: list[float]) -> None:
    made = make()
    assert find_archive() == made
    prepare_jvm()
    prepare_jvm()
    assert os.environ[JVM_OPTIONS].count(f'"-XX:SharedArchiveFile={made}"') == 1
    assert later == []


def test_an_archive_fits_jars_that_came_in_a_layer_of_an_image(recording: None, tmp_path: Path) -> None:
    jar = tmp_path / "spark/jars/spark-core.jar"
    os.utime(jar, ns=(0, 1_700_000_000_123_456_789))
    made = make()
    os.utime(jar, ns=(0, 1_700_000_000_000_000_000))
    assert find_archive() == made


def test_what_the_user_tells_the_jvm_stays(recording: None, monkeypatch: pytest.MonkeyPatch) -> None:
    make()
    monkeypatch.setenv(JVM_OPTIONS, "-Dmine=1")
    prepare_jvm()
    assert os.environ[JVM_OPTIONS].startswith("-Dmine=1 ")


def test_where_there_is_none_one_is_made_beside_a_run_that_lasts(later: list[float]) -> None:
    prepare_jvm()
    assert later == [jvm_archive.MAKE_AFTER_SECONDS]
    assert JVM_OPTIONS not in os.environ


@pytest.mark.parametrize(
    ("name", "value"), [(SWITCH, "off"), ("SPARK_REMOTE", "sc://x"), ("PYSPARK_GATEWAY_PORT", "1")]
)
def test_nothing_is_made_or_used_where_it_is_not_wanted_or_no_jvm_is_started(
    recording: None, later: list[float], monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    prepare_jvm()
    make()
    prepare_jvm()
    assert later == []
    assert JVM_OPTIONS not in os.environ


@pytest.mark.parametrize("damage", ["flip", "truncate", "empty"])
def test_a_damaged_archive_is_left_out_and_made_again(recording: None, damage: str) -> None:
    made = make()
    content = bytearray(made.read_bytes())
    content[500] ^= 1
    made.write_bytes({"flip": bytes(content), "truncate": bytes(content[:400]), "empty": b""}[damage])
    assert find_archive() is None
    assert make() == find_archive() != made


def test_other_jars_or_another_java_need_another_archive(recording: None, machine: Path) -> None:
    first = make()
    (machine / "spark/jars/more.jar").write_bytes(b"more")
    assert find_archive() is None
    second = make()
    (machine / "java/bin/java").write_text("#!/bin/sh\n# newer\n")
    assert find_archive() is None
    assert {first, second} < {make(), *first.parent.iterdir()}


def test_few_archives_are_kept(recording: None, machine: Path) -> None:
    made = []
    for number in range(KEPT + 2):
        (machine / "spark/jars/spark-core.jar").write_bytes(b"classes" * number)
        made.append(make())
        os.utime(made[-1], (number, number))
    assert sorted(path for path in made[0].parent.iterdir() if path.suffix == ".jsa") == sorted(made[-KEPT:])


def test_one_process_makes_it_at_a_time_and_others_wait_for_it(
    monkeypatch: pytest.MonkeyPatch, machine: Path
) -> None:
    begun, go_on, recordings = threading.Event(), threading.Event(), []

    def recorded(file: Path, place: str) -> str:
        recordings.append(file)
        begun.set()
        assert go_on.wait(60)
        file.write_bytes(b"recorded")
        return ""

    monkeypatch.setattr(jvm_archive, "_recorded", recorded)
    with ThreadPoolExecutor(2) as processes:
        first = processes.submit(make)
        assert begun.wait(60)
        second = processes.submit(make)
        go_on.set()
        assert first.result(60) == second.result(60)
    assert len(recordings) == 1


def test_a_recording_that_does_not_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def recorded(file: Path, place: str) -> str:
        raise subprocess.TimeoutExpired("job", 900)

    monkeypatch.setattr(jvm_archive, "_recorded", recorded)
    with pytest.raises(MachineError, match="it was not done after 900 s"):
        make()


def test_a_java_that_makes_none_is_quoted(monkeypatch: pytest.MonkeyPatch, machine: Path) -> None:
    monkeypatch.setattr(jvm_archive, "_recorded", lambda file, place: "Unrecognized VM option")
    with pytest.raises(MachineError, match="Unrecognized VM option"):
        make()
    assert find_archive() is None
    assert [path.name for path in (machine / "cache/holdfast/jvm").iterdir()] == ["lock"]


def test_what_a_killed_process_left_is_removed(recording: None, machine: Path) -> None:
    left = machine / "cache/holdfast/jvm/making-x"
    left.mkdir(parents=True)
    (left / "classes.jsa").write_bytes(b"half")
    make()
    assert not left.exists()
