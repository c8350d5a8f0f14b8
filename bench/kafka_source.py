"""How fast are rows read from Kafka, beside Spark's own Kafka connector?

    python -m bench.kafka_source [ROWS] [--profile]

One topic on a broker of its own, one session, in turns: the whole topic is read by a slice of `KafkaSource`,
and by Spark's connector with the same columns and isolation, and written nowhere (`noop`). Values are bytes,
or JSON parsed by a schema: of ours with the check that each fits. Spark's connector is not published for the
version of Spark that is tested here: that of the version before runs with it. `--profile` says instead where
a task of ours spends its time.
"""

from __future__ import annotations

import cProfile
import os
import pstats
import sys
import time
from collections.abc import Callable
from functools import partial
from statistics import median

import pyarrow as pa
from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession

import holdfast as hf
from bench.spark_baselines import CORES, session
from holdfast.connectors.kafka.positions import Position, in_tasks, ranges_of
from holdfast.connectors.kafka.reading import RangesReader
from tests.services.kafka_broker import QUIET, KafkaBroker, fetched, shared_broker

ROWS = 2_000_000
PARTITIONS = 4
ROUNDS = 5
TOPIC = "events"
SCHEMA = "id long, user string, amount double, text string"
JARS = {
    "org.apache.spark:spark-sql-kafka-0-10_2.13": "4.2.0",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13": "4.0.0",
    "org.apache.kafka:kafka-clients": "4.1.1",
    "org.apache.commons:commons-pool2": "2.12.1",
}


def pom() -> str:
    """The jars alone: what they depend on comes with Spark."""
    nothing = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
    wanted = [(*name.split(":"), version) for name, version in JARS.items()]
    each = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId><version>{version}</version>"
        f"{nothing}</dependency>"
        for group, name, version in wanted
    )
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        "<groupId>holdfast.bench</groupId><artifactId>connector</artifactId><version>1</version>"
        f"<packaging>pom</packaging><dependencies>{each}</dependencies></project>"
    )


def fill(kafka: KafkaBroker, rows: int) -> None:
    kafka.make(TOPIC, PARTITIONS)
    producer = Producer(
        {
            "bootstrap.servers": kafka.servers,
            "linger.ms": 50,
            "queue.buffering.max.messages": 500_000,
            **QUIET,
        }
    )
    for n in range(rows):
        key = b"user-%d" % (n % 1000)
        value = b'{"id":%d,"user":"%b","amount":%d.5,"text":"some more text"}' % (n, key, n)
        while True:
            try:
                producer.produce(TOPIC, value, key, n % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(120) == 0


def ours(spark: SparkSession, source: hf.KafkaSource) -> DataFrame:
    reader = source.reader([])
    slice = reader.next(None, None, 0)
    assert slice is not None
    return reader.frame(spark, slice)


def theirs(spark: SparkSession, servers: str, schema: str | None) -> DataFrame:
    options = {
        "kafka.bootstrap.servers": servers, "subscribe": TOPIC, "includeHeaders": "true",
        "startingOffsets": "earliest", "endingOffsets": "latest",
        "kafka.isolation.level": "read_committed",
    }  # fmt: skip
    rows = spark.read.format("kafka").options(**options).load()
    value = f"from_json(cast(value as string), '{schema}') as value" if schema else "value"
    return rows.selectExpr(
        "key", value, "headers", "timestamp", "partition", "offset", "topic",
        "concat_ws('-', topic, partition) as topic_partition",
    )  # fmt: skip


def timed(frame: Callable[[], DataFrame]) -> float:
    start = time.perf_counter()
    frame().write.format("noop").mode("overwrite").save()
    return time.perf_counter() - start


def compare(rows: int, kafka: KafkaBroker) -> None:
    jars = ",".join(str(path) for path in sorted(fetched("spark-kafka-4.2.0", pom()).glob("*.jar")))
    spark = session(jars)
    plain = hf.KafkaSource(kafka.servers, TOPIC)
    parsed = hf.KafkaSource(kafka.servers, TOPIC, format="json", schema=SCHEMA)
    assert ours(spark, plain).count() == theirs(spark, kafka.servers, None).count() == rows
    pairs: dict[str, list[Callable[[], DataFrame]]] = {
        "bytes": [partial(ours, spark, plain), partial(theirs, spark, kafka.servers, None)],
        "json": [partial(ours, spark, parsed), partial(theirs, spark, kafka.servers, SCHEMA)],
    }
    for name, pair in pairs.items():
        found: list[list[float]] = [[], []]
        for number in range(ROUNDS + 1):
            for which, frame in enumerate(pair):
                took = timed(frame)
                # The first time warms up the JVM and the Python workers.
                found[which] += [took] if number else []
        for who, seconds in zip(("KafkaSource", "Spark's own"), found, strict=True):
            spread = f"{rows / max(seconds):,.0f} to {rows / min(seconds):,.0f}"
            print(f"{name:6} {who:12} {rows / median(seconds):12,.0f} rows/s   ({spread})", flush=True)
        print(
            f"{name:6} ratio        {median(found[1]) / median(found[0]):12.2f}x of Spark's own", flush=True
        )
    spark.stop()


def profile(kafka: KafkaBroker) -> None:
    """One task, in this process."""
    source = hf.KafkaSource(kafka.servers, TOPIC)
    slice = source.reader([]).next(None, None, 0)
    assert slice is not None
    tasks = in_tasks(ranges_of(slice.detail), Position.of(slice.end).places, 1, 1)
    reader, numbers = RangesReader(source.connection, tuple(tasks)), pa.RecordBatch.from_pydict({"id": [0]})
    for name in ("cold", "warm"):
        start, cpu = time.perf_counter(), time.process_time()
        rows = sum(batch.num_rows for batch in reader(iter([numbers])))
        took, used = time.perf_counter() - start, time.process_time() - cpu
        print(f"{name}: {rows / took:,.0f} rows/s, {used / took:.2f} cores of this process")
    with cProfile.Profile() as seen:
        for _ in reader(iter([numbers])):
            pass
    pstats.Stats(seen).sort_stats("tottime").print_stats(15)


def main() -> None:
    numbers = [int(each) for each in sys.argv[1:] if each.isdigit()]
    rows = numbers[0] if numbers else ROWS
    load = os.getloadavg()[0]
    kafka = shared_broker()
    fill(kafka, rows)
    if "--profile" in sys.argv:
        profile(kafka)
        return
    compare(rows, kafka)
    print(f"{rows:,} rows in {PARTITIONS} partitions, {CORES} cores; load before: {load:.1f}")


if __name__ == "__main__":
    main()
