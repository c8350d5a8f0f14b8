"""A Postgres for the tests of a module, and tables in it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from tests.services.servers import PostgresDirectory, Server


@pytest.fixture(scope="module")
def postgres() -> Iterator[Server]:
    """Everyone on this machine may come in; a user `guest`, if one is made, needs a password."""
    directory = PostgresDirectory(guests=["guest"], max_prepared_transactions="4")
    with directory, directory.running() as server:
        yield server


@pytest.fixture
def db(postgres: Server) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        yield connection


def created(db: psycopg.Connection[Any], columns: str, kind: str = "totals") -> str:
    """A table with a name that no other test has."""
    name = f"{kind}_{uuid.uuid4().hex[:8]}"
    db.execute(f"CREATE TABLE {name} ({columns})")
    return name
