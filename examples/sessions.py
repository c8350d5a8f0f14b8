"""Visits of users: clicks that follow one another within 30 minutes belong to one visit.

A visit is shown when it has ended. A click that comes late, but within an hour, still counts: its visit is
shown again with a higher revision, and what was shown of it before is taken back with `deleted`.
"""

import holdfast as hf

job = hf.Job("sessions")
clicks = job.source(
    hf.GeneratorSource(
        {
            "user": "pmod(rnd, 50)",
            "page": "concat('/page/', pmod(rnd, 7))",
            "ts": "timestamp_seconds(1767225600 + id * 60 + pmod(rnd, 40))",
        },
        schema="user long, page string, ts timestamp",
        total=5_000,
    ),
    uid="clicks",
)
visits = (
    clicks.watermark("ts", delay="1m")
    .key_by("user", order_by="ts")
    .window(hf.session("30m"), on="ts", allowed_lateness="1h")
    .aggregate(uid="visits", clicks=hf.count(), entered=hf.first("page"), left=hf.last("page"))
)
visits.sink(hf.FileSink("out/sessions", format="json"), uid="visits-out")

if __name__ == "__main__":
    job.run(checkpoint="ck/sessions", until="exhausted")
