"""What each user has ordered so far, from a Redis stream, exactly once.

redis-cli xadd orders '*' user anna amount 5
holdfast run examples/redis_orders.py --checkpoint ck/redis-orders
"""

import os

import holdfast as hf

job = hf.Job("redis-orders")
orders = job.source(
    hf.RedisStreamSource(
        os.environ.get("REDIS_URL", "redis://127.0.0.1:6379/0"),
        "orders",
        schema="user string, amount long",
    ),
    uid="orders",
)
orders.key_by("user").aggregate(orders=hf.count(), amount=hf.sum("amount"), uid="totals").sink(
    hf.FileSink("out/redis-orders", format="json"), uid="totals-out"
)

if __name__ == "__main__":
    job.run(checkpoint="ck/redis-orders", until="exhausted")
