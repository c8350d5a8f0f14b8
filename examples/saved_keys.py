import os
import sqlite3
from dataclasses import dataclass

import holdfast as hf


@dataclass(frozen=True)
class SqliteStates(hf.StateStorage):
    path: str

    def save(self, id, data):
        upsert = "INSERT INTO saves VALUES (?1, ?2, ?3) ON CONFLICT (operator, key) DO UPDATE SET data = ?3"
        unless_later = " WHERE substr(data, 1, 20) <= substr(?3, 1, 20)"
        with self._open() as db:
            if not db.execute(upsert + unless_later, (id.operator, id.key, data)).rowcount:
                raise self.superseded(id)

    def fetch(self, id):
        query = "SELECT data FROM saves WHERE operator = ? AND key = ?"
        rows = self._open().execute(query, (id.operator, id.key))
        return next((data for (data,) in rows), None)

    def keys(self, operator):
        rows = self._open().execute("SELECT key FROM saves WHERE operator = ?", (operator,))
        return [hf.StateId(operator, key) for (key,) in rows]

    def _open(self):
        db = sqlite3.connect(self.path, timeout=30)
        db.execute("CREATE TABLE IF NOT EXISTS saves (operator, key, data, PRIMARY KEY (operator, key))")
        return db


class Visits(hf.KeyedFunction):
    """How often a visitor came. Each one is saved by itself: at every tenth visit, and when the run ends."""

    output = "visitor long, visits long"
    visits = hf.ValueState("long", default=0)

    def process(self, row, ctx):
        self.visits.value += 1
        yield row.visitor, self.visits.value


job = hf.Job("saved-keys")
came = hf.GeneratorSource({"visitor": "pmod(id, 50)"}, schema="visitor long", total=1_000)
protection = hf.Uncoordinated(events=10, storage=SqliteStates(os.path.abspath("states.db")))
visitors = job.source(came, uid="came").key_by("visitor")
counted = visitors.process(Visits(), uid="visits", protection=protection)
counted.sink(hf.FileSink("out/visits", format="json"), uid="out")

if __name__ == "__main__":
    job.run(checkpoint="ck/", until="exhausted")
