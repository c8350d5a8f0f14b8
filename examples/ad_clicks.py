"""Which ads are clicked: impressions joined with the clicks that follow within a minute.

An impression without a click is shown too, with nulls, once the watermark says that no click can come any
more that is in time. Rows that come too late are kept beside them.
"""

import holdfast as hf

job = hf.Job("ad-clicks")
shown = job.source(
    hf.GeneratorSource(
        {"ad": "id", "page": "concat('/page/', pmod(rnd, 7))", "ts": "timestamp_seconds(1767225600 + id)"},
        schema="ad long, page string, ts timestamp",
        total=2_000,
    ),
    uid="shown",
).watermark("ts", delay="10s")
clicked = job.source(
    hf.GeneratorSource(
        {"ad": "id * 4", "at": "timestamp_seconds(1767225600 + id * 4 + pmod(rnd, 90))"},
        schema="ad long, at timestamp",
        total=500,
    ),
    uid="clicked",
).watermark("at", delay="100s")

joined = shown.key_by("ad").interval_join(
    clicked.key_by("ad"), on=("ts", "at"), within=("0s", "1m"), how="left", uid="clicks"
)
joined.sink(hf.FileSink("out/ads", format="json"), uid="ads-out")
joined.late().sink(hf.FileSink("out/late", format="json"), uid="late-out")

if __name__ == "__main__":
    job.run(checkpoint="ck/ad-clicks", until="exhausted")
