"""A BatchFunction: all rows of a shard at once, as Arrow columns; the state of all their keys as columns too.

Finds readings far from the mean of all that their sensor sent in earlier epochs. numpy does the work: no
Python function is called for a row.
"""

import numpy as np
import pyarrow as pa

import holdfast as hf


class Outliers(hf.BatchFunction):
    """Keeps count, sum and sum of squares per sensor; emits readings beyond `limit` standard deviations."""

    output = "sensor long, reading double, mean double"
    n = hf.ValueState("long", default=0)
    total = hf.ValueState("double", default=0.0)
    squares = hf.ValueState("double", default=0.0)

    def __init__(self, limit):
        self.limit = limit

    def process(self, rows, ctx):
        # State columns have one value per key, in the order of ctx.keys; key_index finds the key of each row.
        n, total, squares = (state.column.to_numpy() for state in (self.n, self.total, self.squares))
        mean = total / np.maximum(n, 1)
        spread = np.sqrt(np.maximum(squares / np.maximum(n, 1) - mean**2, 0))

        key, reading = ctx.key_index, rows["reading"].to_numpy()
        far = (n[key] >= 30) & (np.abs(reading - mean[key]) > self.limit * spread[key])

        def per_key(values=None):
            return np.bincount(key, weights=values, minlength=len(ctx.keys))

        self.n.column = n + per_key().astype(np.int64)
        self.total.column = total + per_key(reading)
        self.squares.column = squares + per_key(reading**2)
        return rows.append_column("mean", pa.array(mean[key])).filter(pa.array(far))


readings = hf.GeneratorSource(
    {"sensor": "pmod(id, 20)", "reading": "if(id = 9000, 500.0, 20 + pmod(rnd, 100) / 50)"},
    schema="sensor long, reading double",
    total=10_000,
)
job = hf.Job("outliers")
sensors = job.source(readings, uid="readings").key_by("sensor")
outliers = sensors.process_batch(Outliers(limit=6), uid="outliers")
outliers.sink(hf.FileSink("out/outliers", format="json"), uid="out")

if __name__ == "__main__":
    job.run(checkpoint="ck/outliers", until="exhausted", max_rows_per_epoch=2_000)
