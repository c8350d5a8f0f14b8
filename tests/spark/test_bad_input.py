"""What is wrong outside the job is told in one clear line, and nothing half-written becomes visible."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

import holdfast as hf
from holdfast.checkpoint.chain.skip import choose, give_up
from holdfast.cli.main import app
from holdfast.errors import StorageError
from holdfast.runtime import epoch_loop
from holdfast.steps import Step
from holdfast.storage.urls import open_storage
from tests.spark.jobs import ROWS, SCHEMA, check_sequences, expected_totals, run, sequence_job


def one_line(error: BaseException) -> str:
    assert "\n" not in str(error), str(error)
    return str(error)


def test_storage_that_cannot_be_used_is_named(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    with pytest.raises(StorageError, match="file") as error:
        run(sequence_job(ROWS, hf.MemorySink()), spark, tmp_path / "file" / "ck", working_dir=tmp_path / "w")
    one_line(error.value)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of half a megabyte: a real file system that really fills up."""
    disk = tmp_path / "small"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(disk)], check=True)
    yield disk
    # Lazily: workers keep directories open.
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
def test_a_full_disk_stops_the_job_and_room_lets_it_go_on(
    spark: SparkSession, tmp_path: Path, small_disk: Path
) -> None:
    sink = hf.MemorySink()
    job = sequence_job(ROWS, sink)
    filler = small_disk / "filler"
    filler.write_bytes(b"x" * 490_000)
    with pytest.raises(hf.HoldfastError, match=r"(?i)disk full|no space") as error:
        run(job, spark, small_disk / "ck", working_dir=tmp_path / "w")
    one_line(error.value)
    filler.unlink()
    run(job, spark, small_disk / "ck", working_dir=tmp_path / "w")
    check_sequences(sink.rows(), expected_totals())


class Wrong(hf.KeyedFunction):
    output = "user string, n int"
    n = hf.ValueState("long", default=0)

    def process(self, row: Any, ctx: Any) -> Any:
        yield row.user, "seven"


def test_output_that_does_not_fit_its_schema_is_named(spark: SparkSession, tmp_path: Path) -> None:
    job = hf.Job("misfit")
    stream = job.source(hf.MemorySource(ROWS, schema=SCHEMA), uid="rows").key_by("user")
    stream.process(Wrong(), uid="wrong").sink(hf.MemorySink(), uid="out")
    with pytest.raises(hf.UserCodeError, match=r"'n'.*declared int") as error:
        run(job, spark, tmp_path / "ck")
    assert "'seven'" in one_line(error.value)


def test_a_transform_that_fails_is_named_before_anything_runs(spark: SparkSession, tmp_path: Path) -> None:
    job = hf.Job("bad-transform")
    stream = job.source(hf.MemorySource(ROWS, schema=SCHEMA), uid="rows")
    stream.transform(lambda df: df.where("no_such_column > 1")).sink(hf.MemorySink(), uid="out")
    with pytest.raises(hf.DefinitionError, match=r"test_bad_input.py:\d+ transform.*no_such_column") as error:
        run(job, spark, tmp_path / "ck")
    one_line(error.value)


def test_vanished_input_is_named_and_can_be_skipped_on_purpose(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "in"
    source.mkdir()
    for number in range(3):
        (source / f"{number}.json").write_text(f'{{"user": "u{number}", "amount": {number}}}\n')
    sink = hf.MemorySink()

    def job() -> hf.Job:
        declared = hf.Job("vanishing")
        files = hf.FileSource(source, format="json", schema=SCHEMA)
        declared.source(files, uid="files").sink(sink, uid="out")
        return declared

    def lose_the_second_file(step: Step) -> None:
        if step is Step.PLAN_WRITTEN and list((tmp_path / "ck" / "plans").glob("*2/*")):
            (source / "1.json").unlink()

    monkeypatch.setattr(epoch_loop, "reached", lose_the_second_file)
    with pytest.raises(hf.InputVanished, match=r"1\.json.*skip") as error:
        run(job(), spark, tmp_path / "ck", max_rows_per_epoch=1)
    monkeypatch.undo()
    one_line(error.value)
    storage = open_storage(str(tmp_path / "ck"))
    give_up(storage, choose(storage, source="files"))
    run(job(), spark, tmp_path / "ck", max_rows_per_epoch=1)
    assert sorted(sink.rows()) == [("u0", 0), ("u2", 2)]


def test_one_file_is_given_up_and_the_rest_of_its_epoch_is_read(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "in"
    source.mkdir()
    for number in range(3):
        (source / f"{number}.json").write_text(f'{{"user": "u{number}", "amount": {number}}}\n')
    sink = hf.MemorySink()

    def job() -> hf.Job:
        declared = hf.Job("vanishing")
        files = hf.FileSource(source, format="json", schema=SCHEMA)
        declared.source(files, uid="files").sink(sink, uid="out")
        return declared

    def lose_a_file(step: Step) -> None:
        if step is Step.PLAN_WRITTEN:
            (source / "1.json").unlink()

    monkeypatch.setattr(epoch_loop, "reached", lose_a_file)
    with pytest.raises(hf.InputVanished, match=r"`holdfast skip --file 1\.json --checkpoint"):
        run(job(), spark, tmp_path / "ck")
    monkeypatch.undo()
    done = CliRunner().invoke(app, ["skip", "--checkpoint", f"{tmp_path}/ck", "--file", "1.json", "--yes"])
    assert done.exit_code == 0, done.stderr
    # It comes back too late: it was given up, and is not read as a new file either.
    (source / "1.json").write_text('{"user": "u1", "amount": 1}\n')
    (source / "3.json").write_text('{"user": "u3", "amount": 3}\n')
    run(job(), spark, tmp_path / "ck")
    assert sorted(sink.rows()) == [("u0", 0), ("u2", 2), ("u3", 3)]
