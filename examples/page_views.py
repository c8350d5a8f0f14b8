"""Running aggregates per page, shown in two places: files for readers, the terminal for you.

A console cannot be asked what it already shows, so it may repeat an epoch after a crash; the job says so.
"""

import holdfast as hf

job = hf.Job("page-views")
views = job.source(
    hf.GeneratorSource(
        {"page": "concat('/page/', pmod(rnd, 5))", "ms": "pmod(rnd, 900) + 100"},
        schema="page string, ms long",
        rows_per_second=1_000,
        total=5_000,
    ),
    uid="views",
)
pages = views.key_by("page").aggregate(
    uid="pages", views=hf.count(), slowest=hf.max("ms"), average=hf.mean("ms"), last=hf.last("ms")
)
pages.sink(hf.FileSink("out/pages", format="json"), uid="pages-out")
pages.sink(hf.ConsoleSink(max_rows=5), uid="console")

if __name__ == "__main__":
    job.run(checkpoint="ck/page-views", guarantee="at-least-once", until="exhausted")
