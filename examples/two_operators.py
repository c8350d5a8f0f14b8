"""Two operators in a row, each with its own state: visits per user, then how many users reached which level.

Both change together or not at all: an epoch is committed as a whole.
"""

import holdfast as hf


class Levels(hf.KeyedFunction):
    """Emits a user when the number of their visits reaches 1, 10, 100, ..."""

    output = "level long, user long"
    visits = hf.ValueState("long", default=0)

    def process(self, row, ctx):
        self.visits.value += 1
        if str(self.visits.value).strip("0") == "1":
            yield self.visits.value, row.user


job = hf.Job("two-operators")
visits = job.source(
    hf.GeneratorSource({"user": "pmod(rnd, 100)"}, schema="user long", total=5_000), uid="visits"
)
reached = visits.key_by("user").process(Levels(), uid="levels")
reached.key_by("level").aggregate(uid="users-per-level", users=hf.count()).sink(
    hf.FileSink("out/levels", format="json"), uid="levels-out"
)

if __name__ == "__main__":
    job.run(checkpoint="ck/two-operators", until="exhausted")
