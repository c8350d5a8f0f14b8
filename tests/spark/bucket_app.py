"""A process with a Spark of its own, whose tasks reach a bucket by the environment it was started with.

python -m tests.spark.bucket_app compare DIRECTORY URL    the same files in both places, read by a FileSource
python -m tests.spark.bucket_app run URL                  a job that reads, keeps and shows in the bucket
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.runtime.spark_session import open_session


def seen(spark: SparkSession, path: str, how: dict[str, Any]) -> dict[str, Any]:
    """What a FileSource has to say of the files of a place."""
    source = hf.FileSource(path, **how)
    reader = source.reader([])
    slice = reader.next(None, None, 0)
    assert slice is not None
    try:
        if source.sifts:
            rows = reader.sifted(spark, slice).rows.collect()
            letters = [
                [str(Path(found["file"]).name), found["line"], found["row"], found["reason"]]
                for found in reader.malformed(spark, slice).collect()
            ]
        else:
            rows, letters = reader.frame(spark, slice).collect(), []
    except Exception as refused:
        return {"refused": type(refused).__name__, "text": str(refused)[:3000]}
    return {"rows": sorted(map(repr, rows)), "letters": sorted(letters, key=repr), "told": reader.news()}


def compare(spark: SparkSession, directory: Path, url: str) -> None:
    """Each folder NAME of the directory, read as NAME.case beside it says."""
    found = {}
    for settings in sorted(directory.glob("*.case")):
        how, name = json.loads(settings.read_text()), settings.stem
        found[name] = [seen(spark, str(directory / name), how), seen(spark, f"{url}/{name}", how)]
    print(json.dumps(found, default=str))


def job(url: str) -> hf.Job:
    job = hf.Job("in-a-bucket")
    rows = job.source(hf.FileSource(f"{url}/in", format="json", schema="user string, n long"), uid="rows")
    totals = rows.key_by("user").aggregate(total=hf.sum("n"), uid="totals")
    totals.sink(hf.FileSink(f"{url}/out", format="parquet"), uid="out")
    rows.sink(hf.FileSink(f"{url}/copy", format="json"), uid="copy")
    return job


def main(command: str, *arguments: str) -> None:
    if command == "run":
        (url,) = arguments
        restart = hf.FixedDelay(attempts=50, delay="100ms")
        job(url).run(f"{url}/ck", until="exhausted", max_rows_per_epoch=4, restart=restart, on_message=print)
        return
    spark = open_session("bucket")
    directory, url = arguments
    compare(spark, Path(directory), url)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
