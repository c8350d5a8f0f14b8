"""Events once each, though they are delivered more than once: what was seen is remembered for a day.

Two deliveries of an event may be more than a day apart: then it counts as another one. What is remembered is
removed for good, so that state does not grow with everything that ever came.
"""

import holdfast as hf


class Once(hf.KeyedFunction):
    """Lets the first delivery of an event through."""

    output = "event long, payload string"
    seen = hf.ValueState("boolean", default=False, ttl="1d")

    def process(self, row, ctx):
        if not self.seen.value:
            self.seen.value = True
            yield row.event, row.payload


job = hf.Job("deduplicate")
deliveries = job.source(
    hf.GeneratorSource(
        {"event": "cast(id / 2 as long)", "payload": "concat('p', cast(id / 2 as long))"},
        schema="event long, payload string",
        total=4_000,
    ),
    uid="deliveries",
)
deliveries.key_by("event").process(Once(), uid="once").sink(
    hf.FileSink("out/once", format="json"), uid="once-out"
)

if __name__ == "__main__":
    job.run(checkpoint="ck/deduplicate", until="exhausted")
