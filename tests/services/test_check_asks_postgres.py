"""`holdfast check` on a job with a table: it asks the marks what a start would, and changes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
from typer.testing import CliRunner

from holdfast.cli.main import app
from holdfast.connectors.postgres.sink import PostgresSink
from tests.services.postgres_kit import db, postgres
from tests.services.servers import Server
from tests.unit.admin.test_sinks_asked import end
from tests.unit.runtime.epoch.test_lane_sinks import World

__all__ = ["db", "postgres"]

EVERYTHING = "SELECT oid, relname FROM pg_class ORDER BY oid"


def test_another_table_of_the_same_name_is_told_before_the_start(
    postgres: Server, db: psycopg.Connection[Any], tmp_path: Path
) -> None:
    db.execute("CREATE TABLE numbers (n bigint)")
    world: Any = World(tmp_path)
    world.sink = PostgresSink("numbers", dsn=postgres.url)
    world.context = world.leader()
    world.commit((0, [1, 2]))
    world.tell(world.start())
    end(world.storage)
    (tmp_path / "app.py").write_text(
        "import holdfast as hf\n"
        "job = hf.Job('job')\n"
        "rows = job.source(hf.MemorySource([], schema='n long'), uid='rows')\n"
        f"rows.sink(hf.PostgresSink('numbers', dsn={postgres.url!r}), uid='out')\n"
    )

    def checked() -> Any:
        before = db.execute(EVERYTHING).fetchall(), db.execute("TABLE holdfast_marks").fetchall()
        asked = ["check", str(tmp_path / "app.py"), "--checkpoint", world.storage.url]
        done = CliRunner().invoke(app, asked, env={"COLUMNS": "200"})
        assert before == (db.execute(EVERYTHING).fetchall(), db.execute("TABLE holdfast_marks").fetchall())
        return done

    fine = checked()
    assert fine.exit_code == 0, fine.output
    assert "shows epochs up to 1 of 1, by its own word" in fine.stdout
    db.execute("DROP TABLE numbers")
    db.execute("CREATE TABLE numbers (n bigint)")
    other = checked()
    assert other.exit_code == 4, other.output
    assert "is not the one in which sink 'out' had shown the rows of epochs up to 1" in other.stderr
    db.execute(other.stderr.strip().rpartition("go on in it with ")[2])
    assert checked().exit_code == 0
