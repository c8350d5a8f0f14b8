"""A channel of another job as a source: what is held is read once; what is gone, or another's, is told."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from msgspec.structs import replace

import holdfast as hf
from holdfast.admin.upgrade_check import _plans
from holdfast.checkpoint.chain.channels import answering
from holdfast.checkpoint.chain.checkpoint import open_checkpoint
from holdfast.checkpoint.chain.commits import Chain, Committed
from holdfast.checkpoint.chain.layout import keep_layout
from holdfast.checkpoint.chain.plans import Plans
from holdfast.checkpoint.store.records import CommitRecord, LayoutRecord, PlannedSlice, PlanRecord
from holdfast.clock import SystemClock
from holdfast.connectors.contract import Mark, Slice
from holdfast.errors import DefinitionError, InputVanished, RestoreError, RetryableError
from holdfast.graph.fingerprint import fingerprint
from holdfast.graph.job_graph import Place, SourceNode
from holdfast.runtime.doors.channel_source import ChannelSource, doors_of
from holdfast.runtime.doors.door_reader import DoorReader
from holdfast.runtime.epoch.recorded_plans import PlanShape, recorded_plans
from holdfast.runtime.epoch_loop import _planner_after
from holdfast.runtime.parts.damaged_epochs import damaged_epoch
from holdfast.storage.local_directory import LocalStorage
from holdfast.tasks.task_output import pack_rows
from tests.unit.runtime.leader_kit import leader_of
from tests.unit.runtime.parts.channel_kit import CHANNEL, Producer, door, outlet, plan_of, rows_of

SCHEMA = "user string"


@pytest.fixture
def producer(tmp_path: Path) -> Producer:
    return Producer(LocalStorage(tmp_path / "sender"), door(keep_epochs=4))


def source(producer: Producer, schema: str = SCHEMA, channel: str = CHANNEL) -> ChannelSource:
    return ChannelSource(producer.storage.url, channel=channel, schema=schema)


def all_of(reader: DoorReader, after: object = None, max_rows: int | None = None) -> list[Slice]:
    found: list[Slice] = []
    while (part := reader.next(found[-1].end if found else after, max_rows, 0)) is not None:
        found.append(part)
    return found


def test_a_reader_begins_with_the_oldest_that_is_held(producer: Producer) -> None:
    for n in range(6):
        producer.commit([b"%d" % n])
    (part,) = all_of(source(producer).reader([]))
    assert (part.start, part.end, part.rows) == (None, [6, 0], 4)
    assert rows_of(producer.storage, part) == [b"2", b"3", b"4", b"5"]


def test_another_run_goes_on_after_what_was_read(producer: Producer) -> None:
    producer.commit([b"a"], [b"b"])
    first = source(producer).reader([]).next(None, 1, 0)
    assert first is not None
    producer.commit([b"c"])
    (rest,) = all_of(source(producer).reader(list(first.notes)), first.end)
    assert rows_of(producer.storage, rest) == [b"b", b"c"]
    assert rest.notes == (), "the sender is remembered once"


def test_epochs_that_were_let_go_before_they_were_read_are_told(producer: Producer) -> None:
    producer.commit([b"a"])
    reader = source(producer).reader([])
    (first,) = all_of(reader)
    for n in range(6):
        producer.commit([b"%d" % n])
    told = r"has let go of epochs up to 3, and it was read up to epoch 1 only; .* another uid"
    with pytest.raises(InputVanished, match=told):
        reader.next(first.end, None, 0)
    (again,) = all_of(reader)
    assert rows_of(producer.storage, again) == [b"2", b"3", b"4", b"5"]


def test_what_was_planned_and_let_go_since_is_told_before_it_is_read(producer: Producer) -> None:
    producer.commit([b"a"])
    reader = source(producer).reader([])
    (planned,) = all_of(reader)
    for n in range(40):
        producer.commit([b"%d" % n])
    with pytest.raises(InputVanished, match="it was read up to epoch 0 only"):
        reader.frame(None, planned)  # type: ignore[arg-type]


def test_a_checkpoint_that_took_the_place_of_the_one_that_was_read_is_refused(
    producer: Producer, tmp_path: Path
) -> None:
    producer.commit([b"a"])
    (first,) = all_of(source(producer).reader([]))
    (tmp_path / "sender").rename(tmp_path / "former")
    Producer(LocalStorage(tmp_path / "sender"), producer.node, name="other").commit([b"x"], [b"y"])
    with pytest.raises(RestoreError, match="is of another checkpoint than the one that was read so far"):
        source(producer).reader(list(first.notes)).next(first.end, None, 0)


def test_a_sender_that_went_back_behind_what_was_read_is_told(producer: Producer) -> None:
    producer.commit([b"a"])
    reader = source(producer).reader([])
    with pytest.raises(RestoreError, match=r"the sender in .* has come to epoch 1: .*restore both from"):
        reader.next([5, 0], None, 0)


def test_a_damaged_sender_is_waited_for(producer: Producer) -> None:
    producer.commit([b"a"])
    producer.storage.put("commits/000000000001", b"damaged")
    with pytest.raises(RetryableError, match="cannot be read now"):
        source(producer).reader([]).next(None, None, 0)
    source(producer).check()


def test_a_sender_that_has_not_begun_is_waited_for(tmp_path: Path) -> None:
    waited = ChannelSource(tmp_path / "later", channel=CHANNEL, schema=SCHEMA)
    waited.check()
    reader = waited.reader([])
    assert reader.next(None, None, 0) is None
    assert not reader.exhausted(None)
    producer = Producer(LocalStorage(tmp_path / "later"), door(keep_epochs=4))
    assert reader.next(None, None, 0) is None
    producer.commit([b"a"])
    assert len(all_of(reader)) == 1


def test_it_is_exhausted_when_the_sender_has_ended_and_all_is_read(producer: Producer) -> None:
    producer.commit([b"a"], [b"b"])
    reader = source(producer).reader([])
    first = reader.next(None, 1, 0)
    assert first is not None
    assert not reader.exhausted([2, 0])
    producer.end()
    assert not reader.exhausted(first.end)
    assert reader.exhausted([2, 0])


def test_an_unknown_channel_is_told_with_those_that_there_are(producer: Producer) -> None:
    producer.commit([b"a"])
    with pytest.raises(DefinitionError, match=r"no channel 'order' in .*, its channels are: 'clicks-in';"):
        source(producer, channel="order").check()
    with pytest.raises(DefinitionError, match="no channel 'order'"):
        source(producer, channel="order").reader([]).next(None, None, 0)


def test_the_root_of_a_job_in_parts_is_refused_with_a_part_that_could_be_meant(tmp_path: Path) -> None:
    keep_layout(LocalStorage(tmp_path), LayoutRecord(job="job", parts=("main",)), False)
    Producer(LocalStorage(tmp_path / "parts" / "main"), door(keep_epochs=4)).commit([b"a"])
    with pytest.raises(DefinitionError, match=r"is of a job in parts .* name one, such as .*parts/main"):
        ChannelSource(tmp_path, channel=CHANNEL, schema=SCHEMA).check()
    inner = ChannelSource(tmp_path / "parts" / "main", channel=CHANNEL, schema=SCHEMA)
    assert len(all_of(inner.reader([]))) == 1


def test_event_time_does_not_come_with_the_rows(tmp_path: Path) -> None:
    """Also of a channel between parts: epochs that bring time alone are not read."""
    producer = Producer(LocalStorage(tmp_path), outlet(str(tmp_path / "no-reader")))
    producer.commit([b"a"], [], [], times={1: 10, 2: 20, 3: 30})
    producer.end()
    reader = source(producer).reader([])
    (part,) = all_of(reader)
    assert part.detail["time_us"] is None
    producer.commit([], times={4: 40})
    producer.end()
    assert reader.next(part.end, None, 0) is None
    assert reader.exhausted(part.end)


ROWS = pa.table({"user": ["a"], "n": pa.array([1], pa.int32())})


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        ("user string, n int", None),
        ("n long", None),
        ("usr string", r"has no column 'usr', its columns are user, n; correct the schema"),
        ("user long", r"column 'user' is string, and it is int64 now; read it with a type"),
    ],
)
def test_columns_that_the_channel_does_not_have_are_refused_at_the_start(
    producer: Producer, schema: str, told: str | None
) -> None:
    producer.commit([pack_rows(ROWS)])
    if told is None:
        source(producer, schema).check()
        return
    with pytest.raises(DefinitionError, match=told):
        source(producer, schema).check()


def test_the_columns_of_a_large_file_are_found_at_its_beginning(producer: Producer) -> None:
    many = pa.table({f"column-{n}-{'x' * 100}": [n] for n in range(1_000)})
    producer.commit([pack_rows(many)])
    with pytest.raises(DefinitionError, match="has no column 'user'"):
        source(producer).check()


class Damaged:
    """A job reads epochs 2 and 3 of a channel between parts in its second epoch. That is planned, and epoch 3
    of the channel is damaged and computed again for the part that reads it."""

    def __init__(self, root: Path) -> None:
        sender = Producer(LocalStorage(root / "main"), outlet(str(root / "scoring")), retain=9)
        self.sender, self.storage = sender, LocalStorage(root / "door")
        for rows in (b"a", b"bb", b"ccc"):
            sender.commit([rows])
        self.node = SourceNode(uid="in", source=source(sender), place=Place(__file__, 1))
        self.reader = source(sender).reader([])
        first = self.reader.next(None, 1, 0)
        assert first is not None
        second = self.reader.next(first.end, None, 0)
        assert second is not None
        open_checkpoint(self.storage, "job", 4, SystemClock(), identity="id")
        self.chain, self.plans = Chain(self.storage), Plans(self.storage)
        self.plan = self._planned(2, second)
        self._planned(1, first)
        record = CommitRecord(
            term=1, run="run-1", first_epoch=1, last_epoch=1, attempts={"1": 1}, clock_ms=1, parallelism=1,
            fingerprint="f", positions={"in": first.end}, published_through={},
        )  # fmt: skip
        assert isinstance(self.chain.commit(self.chain.load(), record), Committed)

    def _planned(self, epoch: int, part: Slice) -> PlanRecord:
        planned = PlannedSlice(start=part.start, end=part.end, rows=part.rows, detail=part.detail)
        plan = plan_of(epoch, {"in": planned})
        self.plans.write(plan)
        return plan

    def lose(self) -> None:
        """The sender goes back before epoch 3, to compute it again."""
        sender, (file,) = self.sender, self.sender.files_of(3)
        sender.storage.put(file.extent.object, b"damaged")
        before = sender.view
        sender.context.recovery.compute_again(
            before, sender.chain.view_at(2), answering(before.channels, CHANNEL, 1, (3,))
        )
        sender.open()

    def compute_again(self) -> None:
        self.lose()
        self.sender.commit([b"CCC"])
        assert self.sender.channel.lost == ()

    def followed(self, *shown: Mark) -> list[int]:
        shape = PlanShape(("in",), "f", 1)
        marks = {f"sink-{number}": mark for number, mark in enumerate(shown)}
        view, doors = self.chain.load(), doors_of([self.node])
        return [found.plan.epoch for found in recorded_plans(self.chain, view, shape, marks, doors=doors)]


def test_a_plan_whose_rows_are_computed_again_is_dropped_and_what_takes_their_place_is_read(
    tmp_path: Path,
) -> None:
    job = Damaged(tmp_path)
    assert job.followed() == [2]
    job.lose()
    assert job.followed() == [], "what is lost is waited for"
    job.sender.commit([b"CCC"])
    assert job.followed() == []
    parts = all_of(source(job.sender).reader([]), [1, 0])
    assert [row for part in parts for row in rows_of(job.sender.storage, part)] == [b"bb", b"CCC"]


def test_a_plan_that_sinks_show_is_not_dropped_for_what_was_computed_again(tmp_path: Path) -> None:
    job = Damaged(tmp_path)
    former = job.sender.storage.get(job.sender.files_of(3)[0].extent.object)
    named = job.sender.files_of(3)[0].extent.object
    job.compute_again()
    told = "epoch 2 has to be read again as it was, and the sender in .* has computed again what it read"
    with pytest.raises(RestoreError, match=told):
        job.followed(Mark(2))
    job.sender.storage.put(named, former)
    assert job.followed(Mark(2)) == [2], "the rows of then can be read"
    assert job.followed() == [], "nothing shows them"


@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_leader_and_a_check_look_at_what_was_computed_again(tmp_path: Path, is_replaced: bool) -> None:
    job, declared = Damaged(tmp_path), hf.Job("door")
    declared.source(job.node.source, uid="in").sink(hf.MemorySink(), uid="out")
    graph = declared.graph()
    code = fingerprint(graph)
    job.plans.write(replace(job.plan, attempt=2, fingerprint=code))
    if is_replaced:
        job.compute_again()
    context, view = leader_of(job.storage, declared=graph), job.chain.load()
    context.program.tables = {}  # type: ignore[misc]
    finding, _ = _plans(graph, job.chain, view, code, 1)
    assert finding.what == ("replanned" if is_replaced else "followed")
    plan = _planner_after(context, view, 1, {}).next(100, view.number)
    assert plan is not None
    assert plan.attempt == (3 if is_replaced else 2)


def test_a_run_that_meets_what_was_computed_again_plans_anew(tmp_path: Path) -> None:
    job = Damaged(tmp_path)
    job.compute_again()
    failure = damaged_epoch(job.plan, {"in": job.reader})
    assert isinstance(failure, RetryableError)
    assert "epoch 3 of channel 'in' of the sender in" in str(failure)


def test_what_was_let_go_is_not_taken_for_computed_again(producer: Producer) -> None:
    producer.commit([b"a"], [b"b"])
    reader = source(producer).reader([])
    (planned,) = all_of(reader)
    for n in range(5):
        producer.commit([b"%d" % n])
    assert reader.replaced(planned) is None
