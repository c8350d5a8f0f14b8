"""What lets Spark start faster, with a real one: the class-data archive, and what workers begin with."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.runtime import jvm_archive

SESSION = """
import os
import sys
from pathlib import Path
from holdfast.runtime.spark_session import open_session

spark = open_session("archive")
assert spark.range(5).count() == 5


def known(batches):
    import sys

    import pyarrow as pa

    for _ in batches:
        yield pa.record_batch({"known": ["holdfast.tasks.keyed" in sys.modules]})


if spark.range(1).mapInArrow(known, "known boolean").first().known:
    print("imported")
mine = os.getsid(0)
for process in Path("/proc").glob("[0-9]*"):
    try:
        if os.getsid(int(process.name)) == mine and sys.argv[1] in (process / "maps").read_text():
            print("mapped")
    except (OSError, ValueError):
        pass  # it has ended meanwhile
"""


@pytest.fixture(scope="module")
def archive() -> Path:
    """That of this machine: `make test` has it made, and a run of single tests makes it here."""
    return jvm_archive.make()


def said_by_a_session(archive: Path) -> str:
    """Whether its JVM has mapped a file of this name."""
    done = subprocess.run(
        [sys.executable, "-c", SESSION, archive.name],
        capture_output=True,
        text=True,
        start_new_session=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_spark_starts_with_the_archive(archive: Path) -> None:
    assert "mapped" in said_by_a_session(archive)


def test_spark_starts_without_an_archive_that_is_damaged(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = bytearray(archive.read_bytes())
    for place in range(20_000_000, len(content), 1_000_003):
        content[place] ^= 0xFF
    copied = tmp_path / "holdfast" / "jvm" / archive.name
    copied.parent.mkdir(parents=True)
    copied.write_bytes(content)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert "mapped" not in said_by_a_session(archive)


def test_workers_begin_with_what_tasks_need(archive: Path) -> None:
    assert "imported" in said_by_a_session(archive)
