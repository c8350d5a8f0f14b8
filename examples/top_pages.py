"""The three pages with the most views of every minute: counted per page, then compared within the minute.

The second operator goes by the same event time as the first: a minute is ranked as soon as it has closed.
"""

import holdfast as hf

TOP = 3


class TopPages(hf.WindowFunction):
    """The most viewed pages of a minute, the first of two equal ones by name."""

    output = "place long, page string, views long"

    def process(self, window, rows, ctx):
        ranked = sorted(rows, key=lambda row: (-row.views, row.page))
        for place, row in enumerate(ranked[:TOP], 1):
            yield place, row.page, row.views


job = hf.Job("top-pages")
views = job.source(
    hf.GeneratorSource(
        {
            "page": "concat('/page/', cast(sqrt(pmod(rnd, 400)) as int))",
            "ts": "timestamp_millis(1767225600000 + id * 50)",
        },
        schema="page string, ts timestamp",
        total=5_000,
    ),
    uid="views",
).watermark("ts", delay="1s")

per_page = views.key_by("page").window(hf.tumbling("1m"), on="ts").aggregate(uid="per-page", views=hf.count())
minutes = per_page.transform(lambda df: df.selectExpr("window_start as minute", "page", "views"))
top = minutes.key_by("minute").window(hf.tumbling("1m"), on="minute").process(TopPages(), uid="top")
top.sink(hf.FileSink("out/top-pages", format="json"), uid="top-out")

if __name__ == "__main__":
    job.run(checkpoint="ck/top-pages", until="exhausted")
