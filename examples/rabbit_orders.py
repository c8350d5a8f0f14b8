"""What each user has ordered so far, from a RabbitMQ queue: messages that are delivered again count once.

    holdfast run examples/rabbit_orders.py --checkpoint ck/rabbit-orders

Senders set the message id. It is remembered for a day after it was last seen.
"""

import os

import holdfast as hf

job = hf.Job("rabbit-orders")
orders = job.source(
    hf.RabbitSource(
        os.environ.get("RABBIT_URL", "amqp://127.0.0.1:5672/%2F"),
        "orders",
        schema="id string, user string, amount long",
        id_column="id",
    ),
    uid="orders",
)
once = orders.drop_duplicates(by="id", ttl="1d", uid="once")
once.key_by("user").aggregate(orders=hf.count(), amount=hf.sum("amount"), uid="totals").sink(
    hf.FileSink("out/rabbit-orders", format="json"), uid="totals-out"
)

if __name__ == "__main__":
    job.run(checkpoint="ck/rabbit-orders")
