"""A storage for states of keys as a user writes one; docs/how-to/uncoordinated.md shows it."""

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass

import holdfast as hf
from holdfast.storage.state_storage import is_later, superseded


@dataclass(frozen=True)
class SqliteStates(hf.StateStorage):
    path: str

    def save(self, id: hf.StateId, data: bytes) -> None:
        with self._open() as db:
            db.execute("BEGIN IMMEDIATE")
            for (there,) in db.execute("SELECT data FROM saves WHERE op=? AND key=?", (id.operator, id.key)):
                if is_later(there, data):
                    raise superseded(id)
            db.execute("REPLACE INTO saves VALUES (?, ?, ?)", (id.operator, id.key, data))

    def fetch(self, id: hf.StateId) -> bytes | None:
        rows = self._open().execute("SELECT data FROM saves WHERE op=? AND key=?", (id.operator, id.key))
        return next((data for (data,) in rows), None)

    def keys(self, operator: str) -> Iterator[hf.StateId]:
        for (key,) in self._open().execute("SELECT key FROM saves WHERE op=?", (operator,)):
            yield hf.StateId(operator, key)

    def _open(self) -> sqlite3.Connection:
        db = sqlite3.connect(self.path, timeout=30)
        db.execute("CREATE TABLE IF NOT EXISTS saves (op, key, data, PRIMARY KEY (op, key))")
        return db
