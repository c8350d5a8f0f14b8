"""Seats, without a ZooKeeper. What needs one is in tests/services."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.cluster.ranking import seat_name
from holdfast.cluster.seats import Seat
from holdfast.errors import DefinitionError


class Created:
    """A ZooKeeper that remembers what was created."""

    def __init__(self) -> None:
        self.paths: list[str] = []

    def create(self, path: str, data: bytes) -> bool:
        self.paths.append(path)
        return True


def prepared(job: str) -> list[str]:
    zookeeper: Any = Created()
    Seat(zookeeper, f"/seats/{job}", job).prepare()
    return list(zookeeper.paths)


def test_every_seat_of_a_part_with_replicas_can_be_prepared() -> None:
    for seat in (1, 2, 3):
        job = seat_name("shop.scored", seat)
        assert prepared(job) == [f"/seats/{job}"]


def test_a_job_whose_name_cannot_be_part_of_a_path_has_no_seat() -> None:
    with pytest.raises(DefinitionError, match="'a/b' cannot be used"):
        prepared("a/b")
