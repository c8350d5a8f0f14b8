import holdfast as hf


class TotalLength(hf.KeyedFunction):
    """Running total of word lengths per user."""

    output = "user string, total long"
    total = hf.ValueState("long", default=0)

    def process(self, row, ctx):
        self.total.value += len(row.word)
        yield row.user, self.total.value


job = hf.Job("total-length")
words = job.source(hf.FileSource("in/", format="json", schema="user string, word string"), uid="words")
words = words.transform(lambda df: df.where("word is not null"))
totals = words.key_by("user").process(TotalLength(), uid="totals")
totals.sink(hf.FileSink("out/", format="parquet"), uid="out")

if __name__ == "__main__":
    job.run(checkpoint="ck/")
