"""Orders into two tables of a lake: every order into Delta, by region; totals per user into Iceberg.

Each epoch is one commit of each table: a reader sees whole epochs, each once. Needs
`pip install 'holdfast[delta,iceberg]'` and a catalog named `default` in `.pyiceberg.yaml` (see
docs/how-to/lakes.md, which also says what a local catalog needs).
"""

import holdfast as hf

job = hf.Job("lake-orders")
orders = job.source(
    hf.GeneratorSource(
        {
            "user": "concat('user-', pmod(rnd, 50))",
            "region": "elt(pmod(rnd, 3) + 1, 'eu', 'us', 'asia')",
            "amount": "pmod(rnd, 900) + 100",
        },
        schema="user string, region string, amount long",
        total=3_000,
    ),
    uid="orders",
)
orders.sink(hf.DeltaSink("out/orders", partition_by=["region"]), uid="orders-out")
totals = orders.key_by("user").aggregate(uid="totals", orders=hf.count(), total=hf.sum("amount"))
totals.sink(hf.IcebergSink("shop.totals"), uid="totals-out")

if __name__ == "__main__":
    job.run(checkpoint="ck/lake-orders", until="exhausted")
