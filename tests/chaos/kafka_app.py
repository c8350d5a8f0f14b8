"""One life of a job from Kafka to files: `python -m tests.chaos.kafka_app ROOT SERVERS TOPIC [exhausted]`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import holdfast as hf
from tests.chaos.apps import Place, choose_spark


class Ledger(hf.KeyedFunction):
    """Numbers and adds up the rows of a user."""

    output = "user string, seq long, total long"
    seq = hf.ValueState("long", default=0)
    total = hf.ValueState("long", default=0)

    def process(self, row: hf.Row, ctx: hf.Context) -> Any:
        self.seq.value += 1
        self.total.value += row.n
        yield row.user, self.seq.value, self.total.value


def job(place: Place, servers: str, topic: str) -> hf.Job:
    job = hf.Job("from-kafka")
    source = hf.KafkaSource(servers, topic, format="json", schema="user string, n long", group="from-kafka")
    rows = job.source(source, uid="events").transform(lambda frame: frame.select("value.*"))
    rows.sink(hf.FileSink(place.sink("copy"), format="json"), uid="copy")
    ledger = rows.key_by("user").process(Ledger(), uid="ledger")
    ledger.sink(hf.FileSink(place.sink("ledger"), format="json"), uid="ledger-out")
    return job


def main(root: str, servers: str, topic: str, until: str = "stopped") -> None:
    place = Place(Path(root))
    choose_spark("local[2]", [], place)
    job(place, servers, topic).run(
        place.checkpoint, until=until, max_rows_per_epoch=15, parallelism=2, working_dir=place.working,
        restart=hf.FixedDelay(attempts=50, delay="100ms"), on_message=print,
    )  # fmt: skip


if __name__ == "__main__":
    main(*sys.argv[1:])
