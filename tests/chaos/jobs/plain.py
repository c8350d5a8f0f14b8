"""Rows passed on as they are, to a sink that cannot recognise a repetition; and sums beside them."""

import os

import holdfast as hf

ROWS = int(os.environ.get("CHAOS_ROWS", "30000"))

job = hf.Job("plain")
events = job.source(
    hf.GeneratorSource(
        {"event": "id", "key": "id * 48271 % 2147483647 % 50"}, schema="event long, key long", total=ROWS
    ),
    uid="events",
)
events.sink(hf.ConsoleSink(), uid="events-out")
events.key_by("key").aggregate(uid="sums", events=hf.count(), total=hf.sum("event")).sink(
    hf.ConsoleSink(), uid="sums-out"
)
