"""What each user has ordered so far, from a topic of Kafka into another one, exactly once.

    holdfast run examples/kafka_orders.py --checkpoint ck/kafka-orders
"""

import os

import holdfast as hf

SERVERS = os.environ.get("KAFKA_SERVERS", "127.0.0.1:9092")

job = hf.Job("kafka-orders")
orders = job.source(
    hf.KafkaSource(SERVERS, "orders", format="json", schema="user string not null, amount long"),
    uid="orders",
    on_error="dead-letter",
)
orders.dead_letters().sink(hf.FileSink("out/kafka-bad", format="json"), uid="bad")
values = orders.transform(lambda frame: frame.select("value.*").where("user is not null"))
values.key_by("user").aggregate(orders=hf.count(), amount=hf.sum("amount"), uid="totals").sink(
    hf.KafkaSink(SERVERS, "totals", key="user"), uid="totals-out"
)

if __name__ == "__main__":
    job.run(checkpoint="ck/kafka-orders", until="exhausted")
