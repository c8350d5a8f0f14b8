"""What each user has ordered so far, from one table of Postgres into another, exactly once.

CREATE TABLE orders (id bigserial PRIMARY KEY, txid xid8 NOT NULL DEFAULT pg_current_xact_id(),
                     "user" text, amount bigint);
CREATE INDEX ON orders (txid, id);
CREATE TABLE totals ("user" text PRIMARY KEY, orders bigint, amount bigint);
holdfast run examples/postgres_orders.py --checkpoint ck/postgres-orders
"""

import os

import holdfast as hf

DSN = os.environ.get("POSTGRES_DSN", "postgresql://127.0.0.1/postgres")

job = hf.Job("postgres-orders")
orders = job.source(
    hf.TableSource("orders", dsn=DSN, by=("txid", "id"), schema="user string, amount long"), uid="orders"
)
orders.key_by("user").aggregate(orders=hf.count(), amount=hf.sum("amount"), uid="totals").sink(
    hf.PostgresSink("totals", dsn=DSN, mode="upsert", key="user"), uid="totals-out"
)

if __name__ == "__main__":
    job.run(checkpoint="ck/postgres-orders", until="exhausted")
