"""Words counted over windows of five seconds that begin every second.

A word is added to one pane, however many windows it is in. Words may come up to two seconds late; those that
come later are kept beside the counts, never silently left out.
"""

import holdfast as hf

WORDS = "array('kelp', 'reef', 'tide', 'wave', 'holdfast')"

job = hf.Job("word-count")
words = job.source(
    hf.GeneratorSource(
        {
            "word": f"element_at({WORDS}, cast(pmod(rnd, 5) as int) + 1)",
            "ts": "timestamp_millis(1767225600000 + id * 10 - pmod(rnd, 1500))",
        },
        schema="word string, ts timestamp",
        total=5_000,
    ),
    uid="words",
).watermark("ts", delay="2s")

counts = (
    words.key_by("word").window(hf.sliding("5s", every="1s"), on="ts").aggregate(uid="counts", n=hf.count())
)
counts.sink(hf.FileSink("out/word-count", format="json"), uid="counts-out")
counts.late().sink(hf.FileSink("out/late-words", format="json"), uid="late-out")

if __name__ == "__main__":
    job.run(checkpoint="ck/word-count", until="exhausted")
