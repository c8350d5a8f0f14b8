"""Of which parts a job consists: whose place it is, and what may change between two runs."""

from __future__ import annotations

import pytest

from holdfast.checkpoint.chain.checkpoint import layouts, open_checkpoint, read_job, read_layout
from holdfast.checkpoint.chain.layout import keep_layout
from holdfast.checkpoint.store import names
from holdfast.checkpoint.store.envelope import seal
from holdfast.checkpoint.store.records import LayoutRecord
from holdfast.errors import CorruptionError, RestoreError
from holdfast.storage.contract import Put
from holdfast.testing.clocks import ManualClock
from tests.unit.checkpoint.kept import MemoryStorage

LAYOUT = LayoutRecord(job="fraud", parts=("main", "scoring"), channels={"clicks-in": ("main", "scoring")})


def keep(storage: MemoryStorage, layout: LayoutRecord = LAYOUT, allow_dropped_state: bool = False) -> None:
    keep_layout(storage, layout, allow_dropped_state)


def layout_of(*parts: str, job: str = "fraud") -> LayoutRecord:
    return LayoutRecord(job=job, parts=parts)


def test_a_layout_is_written_once() -> None:
    storage = MemoryStorage()
    assert read_layout(storage) is None
    keep(storage)
    keep(storage)
    assert read_layout(storage) == LAYOUT
    assert list(storage.objects) == [names.layout(1)]


def test_a_part_may_come() -> None:
    storage = MemoryStorage()
    keep(storage)
    keep(storage, layout_of("main", "scoring", "alerts"))
    found = read_layout(storage)
    assert found is not None
    assert found.parts == ("main", "scoring", "alerts")
    assert len(storage.objects) == 2


def test_a_part_goes_only_where_its_state_may_be_dropped() -> None:
    storage = MemoryStorage()
    keep(storage)
    with pytest.raises(
        RestoreError, match=r"has part 'scoring', which the job has no .*, or give that up with --allow-dropp"
    ):
        keep(storage, layout_of("main"))
    assert read_layout(storage) == LAYOUT
    keep(storage, layout_of("main"), allow_dropped_state=True)
    assert read_layout(storage) == layout_of("main")


def test_a_channel_between_other_parts_needs_another_uid() -> None:
    """How far it was read is in epochs of the part that it left: rows would be passed over."""
    storage, other = MemoryStorage(), {"clicks-in": ("alerts", "scoring")}
    keep(storage)
    moved = LayoutRecord(job="fraud", parts=("main", "scoring", "alerts"), channels=other)
    with pytest.raises(RestoreError, match=r"'clicks-in' led from part 'main' to .*; give it another uid"):
        keep(storage, moved, allow_dropped_state=True)
    keep(storage, layout_of("main", "scoring", "alerts"))
    with pytest.raises(RestoreError, match="'clicks-in' led from part 'main'"):
        keep(storage, moved, allow_dropped_state=True)
    renamed = LayoutRecord(job="fraud", parts=moved.parts, channels={"alerts-in": ("alerts", "scoring")})
    keep(storage, renamed)
    keep(storage, LAYOUT, allow_dropped_state=True)


def test_a_former_layout_that_is_damaged_or_missing_stops_nothing() -> None:
    storage = MemoryStorage()
    for parts in (("main",), ("main", "b"), ("main", "b", "c")):
        keep(storage, layout_of(*parts))
    storage.flip(names.layout(1))
    storage.delete([names.layout(2)])
    keep(storage, layout_of("main", "b", "c", "d"))
    assert [len(layout.parts) for layout in layouts(storage)] == [4, 3]
    storage.flip(names.layout(4))
    with pytest.raises(CorruptionError, match=names.layout(4)):
        list(layouts(storage))


def test_the_place_of_another_job_is_refused() -> None:
    storage = MemoryStorage()
    keep(storage)
    with pytest.raises(RestoreError, match="belongs to job 'fraud', not to 'other'; choose another place"):
        keep(storage, layout_of("main", "scoring", job="other"), allow_dropped_state=True)


def test_the_checkpoint_of_a_job_without_parts_is_refused() -> None:
    storage = MemoryStorage()
    open_checkpoint(storage, "fraud", 4, ManualClock(), identity="id")
    with pytest.raises(
        RestoreError,
        match=r"holds the checkpoint of job 'fraud' without parts, and 'fraud' has parts main, sc",
    ):
        keep(storage)


def test_a_job_without_parts_is_refused_where_one_with_parts_is() -> None:
    storage = MemoryStorage()
    storage.url = "s3://b/cp?region=here"
    keep(storage)
    told = r"is of a job in parts \(fraud: main, scoring\).* such as s3://b/cp/parts/main\?region=here"
    with pytest.raises(RestoreError, match=told):
        open_checkpoint(storage, "fraud", 4, ManualClock(), identity="id")
    with pytest.raises(RestoreError, match=told):
        read_job(storage)


def test_a_place_with_something_else_is_refused() -> None:
    storage = MemoryStorage()
    storage.put("report.csv", b"x")
    with pytest.raises(RestoreError, match=r"is not empty and holds no checkpoint \(report.csv is there\)"):
        keep(storage)
    storage = MemoryStorage()
    storage.put(names.SAVEPOINT, b"x")
    with pytest.raises(RestoreError, match="holds a savepoint, not a checkpoint"):
        keep(storage)


def test_the_nodes_of_a_cluster_may_have_met_there_before() -> None:
    storage = MemoryStorage()
    storage.put(f"{names.CLUSTERS}c/nodes/1", b"x")
    keep(storage)
    assert read_layout(storage) == LAYOUT


class Contested(MemoryStorage):
    """Another run puts its layout there at the worst moment."""

    def __init__(self, other: LayoutRecord, when: str) -> None:
        super().__init__()
        self._other, self._when = seal("layout", other), when

    def list(self, prefix: str) -> list:  # type: ignore[type-arg]
        if prefix == "" and self._when == "looking":
            self._act()
        return super().list(prefix)

    def put_new(self, name: str, data: bytes) -> Put:
        if self._when == "writing":
            self._act()
        return super().put_new(name, data)

    def _act(self) -> None:
        self.objects.setdefault(names.layout(1), self._other)


@pytest.mark.parametrize("when", ["looking", "writing"])
def test_two_runs_of_a_job_may_begin_at_once(when: str) -> None:
    storage = Contested(LAYOUT, when)
    keep(storage)
    assert list(storage.objects) == [names.layout(1)]
    storage = Contested(layout_of("main"), when)
    keep(storage)
    assert read_layout(storage) == LAYOUT
    assert list(storage.objects) == [names.layout(1), names.layout(2)]


@pytest.mark.parametrize("when", ["looking", "writing"])
def test_of_two_jobs_that_begin_at_once_one_is_refused(when: str) -> None:
    with pytest.raises(RestoreError, match="belongs to job 'other', not to 'fraud'"):
        keep(Contested(layout_of("main", job="other"), when))
