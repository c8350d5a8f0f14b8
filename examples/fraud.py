"""A small charge to try a card, then a large one: fraud, by rules that may change while the job runs.

Rules are broadcast: every card is judged by the rule of its country, as it is by then. A small charge is
remembered for as long as the rule said at the time; a timer forgets it.
"""

from datetime import timedelta

import holdfast as hf


class SmallThenLarge(hf.BroadcastFunction):
    """Warns of a large charge that comes soon after a small one."""

    output = "card long, small timestamp, large timestamp, amount double"
    rules = hf.BroadcastState("string", "struct<small:double,large:double,seconds:long>")
    suspect = hf.ValueState("struct<since:timestamp,until:timestamp>")

    def process_broadcast(self, row, ctx):
        self.rules[row.country] = (row.small, row.large, row.seconds)

    def process(self, row, ctx):
        rule, suspect = self.rules.get(row.country), self.suspect.value
        if rule is None:
            return
        if suspect and row.amount >= rule.large and row.ts <= suspect.until:
            yield row.card, suspect.since, row.ts, row.amount
        if row.amount <= rule.small:
            self.suspect.value = (row.ts, row.ts + timedelta(seconds=rule.seconds))
            ctx.timers.event(self.suspect.value.until)

    def on_timer(self, at, ctx):
        if self.suspect.value and self.suspect.value.until <= at:
            self.suspect.clear()


job = hf.Job("fraud")
# Declared first, so read first: the first charges find the rules that are there.
known = [("DE", 1.0, 500.0, 60), ("FR", 1.0, 500.0, 180)]
schema = "country string, small double, large double, seconds long"
rules = job.source(hf.MemorySource(known, schema=schema), uid="rules")
charges = hf.GeneratorSource(
    {
        "card": "pmod(id, 40)",
        "country": "if(pmod(id, 40) < 20, 'DE', 'FR')",
        "amount": "if(pmod(id, 400) in (3, 7, 27), 0.5, if(pmod(id, 400) in (43, 127, 147), 900, 20))",
        "ts": "timestamp_seconds(1767225600 + id)",
    },
    schema="card long, country string, amount double, ts timestamp",
    total=4_000,
)
cards = job.source(charges, uid="charges").watermark("ts", delay="5s").key_by("card", order_by="ts")
warnings = cards.connect(rules.broadcast()).process(SmallThenLarge(), uid="fraud")
warnings.sink(hf.FileSink("out/fraud", format="json"), uid="warnings")

if __name__ == "__main__":
    job.run(checkpoint="ck/fraud", until="exhausted")
