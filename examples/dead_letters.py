"""Rows that the function fails on are set aside, each with its error, and the job goes on.

What a failing row had changed in state is undone: it leaves no trace but its dead letter.
"""

import holdfast as hf


class Balance(hf.KeyedFunction):
    """Adds up payments per account."""

    output = "account string, balance long"
    balance = hf.ValueState("long", default=0)

    def process(self, row, ctx):
        self.balance.value += int(row.amount)
        yield row.account, self.balance.value


PAYMENTS = [("anna", "10"), ("ben", "seven"), ("anna", "5"), ("ben", "7"), ("anna", "")]

job = hf.Job("dead-letters")
payments = job.source(hf.MemorySource(PAYMENTS, schema="account string, amount string"), uid="payments")
balances = payments.key_by("account").process(Balance(), uid="balances", on_error="dead-letter")
balances.sink(hf.FileSink("out/balances", format="json"), uid="balances-out")
balances.dead_letters().sink(hf.FileSink("out/dead", format="json"), uid="dead-out")

if __name__ == "__main__":
    job.run(checkpoint="ck/dead-letters", until="exhausted")
