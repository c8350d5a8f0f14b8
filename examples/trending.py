"""Topics counted by key, and the ten that lead behind them: the classic pair of a counter and a top-N.

Counters are spread over all shards. Each tells of a topic whose count has grown; one key, `all`, ranks what
it is told, and shows the leaders whenever they change.
"""

import holdfast as hf

TOP = 10


class Leaders(hf.KeyedFunction):
    """Ranks topics by their counts; shows the leaders of an epoch in which they change."""

    output = "place long, topic string, n long"
    counts = hf.MapState("string", "long")

    def process(self, row, ctx):
        before = self.ranked()
        self.counts[row.topic] = row.n
        ranked = self.ranked()
        if ranked != before:
            yield from ((place, topic, n) for place, (topic, n) in enumerate(ranked, 1))
        leading = dict(ranked)
        for topic in [topic for topic in self.counts if topic not in leading]:
            del self.counts[topic]  # counts only grow: it comes back when it is among the leaders

    def ranked(self):
        return sorted(self.counts.items(), key=lambda each: (-each[1], each[0]))[:TOP]


job = hf.Job("trending")
posts = job.source(
    hf.GeneratorSource(
        {"topic": "concat('#', cast(sqrt(pmod(rnd, 2500)) as int))"}, schema="topic string", total=5_000
    ),
    uid="posts",
)
counted = posts.key_by("topic").aggregate(uid="counter", n=hf.count())
ranking = counted.transform(lambda df: df.selectExpr("'all' as everyone", "topic", "n"))
leaders = ranking.key_by("everyone", order_by=("n", "topic")).process(Leaders(), uid="leaders")
leaders.sink(hf.FileSink("out/trending", format="json"), uid="leaders-out")

if __name__ == "__main__":
    job.run(checkpoint="ck/trending", until="exhausted")
