"""Sinks that append to tables of a lake: what the table's own format has to decide, on real tables."""

from __future__ import annotations

import json
import pickle
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyiceberg.exceptions import ForbiddenError, ServiceUnavailableError

from holdfast.connectors.contract import Mark, StagedPart
from holdfast.connectors.lakes import delta
from holdfast.connectors.lakes.delta import DeltaSink
from holdfast.connectors.lakes.iceberg import IcebergSink
from holdfast.connectors.lane_publisher import ELSEWHERE_FROM_BYTES, FilingPublisher, LanePublisher
from holdfast.connectors.lanes import LaneRows, Result
from holdfast.errors import (
    DefinitionError,
    RestoreError,
    SinkWentBack,
    StorageError,
    Unavailable,
)
from holdfast.runtime.epoch.lane_jobs import _told
from holdfast.storage.local_directory import LocalStorage
from holdfast.tasks.lanes import LaneTask, decode_answer, run_lanes
from holdfast.testing import conformance
from holdfast.testing.clocks import ManualClock
from holdfast.testing.conformance.sink_case import SAMPLE
from holdfast.testing.conformance.sink_columns import EXTREMES
from tests.contract.lake_tables import CASES, COLUMNS, Case, Sink, delta_case
from tests.contract.sqlite_catalog import SqliteCatalog

NUMBER = pa.table({"n": pa.array([1], pa.int64())})


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Case:
    return CASES[request.param](tmp_path)


def part(*numbers: int, input: str = "") -> StagedPart:
    users = [f"u{number % 2}" for number in numbers]
    table = pa.table({"user": users, "n": pa.array(numbers, pa.int64())}, COLUMNS)
    return StagedPart(0, len(numbers), lambda: table, input or f"slices of {numbers}")


def begun(sink: Sink) -> Any:
    publisher = sink.publisher("job", "out")
    publisher.mark()
    publisher.begin(0)
    return publisher


def test_a_table_keeps_what_is_promised_of_a_sink(case: Case) -> None:
    def shown(place: str) -> list[tuple[Any, ...]]:
        rows = case.rows(_named(place))
        return [] if rows is None else [tuple(row.values()) for row in rows.to_pylist()]

    report = conformance.check_sink(
        lambda place: case.make(_named(place), SAMPLE.schema),
        shown,
        take_away=lambda place: case.empty(_named(place)),
    )
    assert set(report.not_asked) == {"accepted-is-shown"}, "asked below, a table for each column"


def _named(place: str) -> str:
    return f"t{place}".replace("-", "_")


@pytest.mark.parametrize(
    ("settings", "of_column"),
    [
        ({"delta.constraints.small": "n < 2"}, {}),
        ({"delta.columnMapping.mode": "name"}, {"delta.columnMapping.physicalName": "c1"}),
        ({}, {"delta.generationExpression": "1"}),
    ],
)
def test_a_delta_table_that_promises_what_is_not_kept_is_refused(
    tmp_path: Path, settings: dict[str, str], of_column: dict[str, str]
) -> None:
    """The library takes the rows all the same, and readers find nulls, or rows that must not be."""
    write_deltalake(tmp_path, NUMBER)
    log = tmp_path / "_delta_log" / f"{0:020d}.json"
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    for told in (action["metaData"] for action in actions if "metaData" in action):
        schema = json.loads(told["schemaString"])
        schema["fields"][0]["metadata"] = of_column
        told |= {"schemaString": json.dumps(schema), "configuration": settings}
    log.write_text("\n".join(map(json.dumps, actions)))
    with pytest.raises(DefinitionError, match="which DeltaSink does not keep"):
        DeltaSink(tmp_path).check_schema(NUMBER.schema)


def test_columns_that_are_accepted_are_shown_whatever_they_hold(case: Case) -> None:
    inner = pa.struct([("t", pa.timestamp("us"))])
    columns = {
        **EXTREMES,
        "first date": pa.array([-(2**31)], pa.date32()),
        "inside": pa.array([{"t": 2**63 - 1}], inner),
        "small": pa.array([-128], pa.int8()),
        "far": pa.array([float("inf")], pa.float32()),
        "zone": pa.array([0], pa.timestamp("us", "Europe/Berlin")),
    }
    refused = set()
    for number, (what, column) in enumerate(columns.items()):
        rows = pa.table({"n": [1], "c": column})
        try:
            publisher = begun(case.make(f"t{number}", rows.schema))
        except DefinitionError:
            refused.add(what)
            continue
        for epoch in (1, 2):
            publisher.publish(epoch, [StagedPart(0, 1, lambda rows=rows: rows)])
    assert refused == {"longest interval", "nanosecond", "nothing"}


def test_a_commit_whose_answer_is_lost_is_found_and_not_made_again(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher, commit, lost = begun(case.make("t")), case.look.commit, []

    def unheard(look: Any, rows: Any, mark: Any) -> None:
        commit(look, rows, mark)
        lost.append(mark.epoch)
        raise OSError("the connection broke")

    monkeypatch.setattr(case.look, "commit", unheard)
    publisher.publish(1, [part(1, 2)])
    assert lost == [1]
    assert case.numbers("t") == [1, 2]


def test_a_publisher_that_looked_before_another_committed_shows_nothing_again(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the library of the format would try again by itself."""
    slow, quick = begun(case.make("t")), begun(case.make("t"))
    commit = case.look.commit

    def overtaken(look: Any, rows: Any, mark: Any) -> None:
        monkeypatch.setattr(case.look, "commit", commit)
        quick.publish(1, [part(1, 2)])
        commit(look, rows, mark)

    monkeypatch.setattr(case.look, "commit", overtaken)
    slow.publish(1, [part(1, 2)])
    assert case.numbers("t") == [1, 2]


def test_rows_that_others_append_meanwhile_stay_and_ours_are_shown_once(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher, commit = begun(case.make("t")), case.look.commit

    def beside(look: Any, rows: Any, mark: Any) -> None:
        monkeypatch.setattr(case.look, "commit", commit)
        case.append("t", part(7).load())
        commit(look, rows, mark)

    monkeypatch.setattr(case.look, "commit", beside)
    publisher.publish(1, [part(1)])
    assert case.numbers("t") == [1, 7]
    assert publisher.mark() == Mark(1, "slices of (1,)")


def test_a_run_that_begins_late_does_not_take_the_mark_back(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looks, another run shows an epoch, and only then it commits where it begins."""
    other = begun(case.make("t"))
    other.publish(1, [part(1)])
    late = case.make("t").publisher("job", "out")
    commit = case.look.commit

    def overtaken(look: Any, rows: Any, mark: Any) -> None:
        monkeypatch.setattr(case.look, "commit", commit)
        other.publish(9, [part(9)])
        commit(look, rows, mark)

    monkeypatch.setattr(case.look, "commit", overtaken)
    late.begin(5)
    assert case.make("t").publisher("job", "out").mark() == Mark(9, "slices of (9,)")


def test_a_table_that_went_back_is_refused(case: Case, tmp_path: Path) -> None:
    publisher = begun(case.make("t"))
    publisher.publish(1, [part(1)])
    shutil.copytree(tmp_path, tmp_path.parent / f"{tmp_path.name}-copy", dirs_exist_ok=True)
    publisher.publish(2, [part(2)])
    shutil.rmtree(tmp_path)
    shutil.copytree(tmp_path.parent / f"{tmp_path.name}-copy", tmp_path)
    told = r"'out' went back: .* shows epochs up to 1, and it had shown epochs up to 2"
    with pytest.raises(SinkWentBack, match=told):
        publisher.publish(3, [part(3)])
    with pytest.raises(SinkWentBack, match=told):
        publisher.begin(2)
    case.drop("t")
    with pytest.raises(SinkWentBack, match="has no trace of this job"):
        publisher.publish(3, [part(3)])


def test_another_copy_of_a_checkpoint_is_noticed(case: Case) -> None:
    begun(case.make("t")).publish(1, [part(1, input="these")])
    with pytest.raises(RestoreError, match="made of other rows than this checkpoint has"):
        begun(case.make("t")).publish(1, [part(1, input="others")])


def test_a_table_that_cannot_be_committed_to_is_tried_again_later(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(look: Any, rows: Any, mark: Any) -> None:
        raise OSError("no space")

    publisher = begun(case.make("t"))
    monkeypatch.setattr(case.look, "commit", refuse)
    with pytest.raises(Unavailable, match=r"could not show epoch 1 in .*\(OSError: no space\)"):
        publisher.publish(1, [part(1)])


def test_rows_are_partitioned_and_read_by_plain_readers(case: Case) -> None:
    publisher = begun(case.make("t", partition_by=["user"]))
    publisher.publish(1, [part(1, 2, 3)])
    rows = case.rows("t")
    assert rows is not None
    assert sorted(zip(rows["user"].to_pylist(), rows["n"].to_pylist(), strict=True)) == [
        ("u0", 2), ("u1", 1), ("u1", 3),
    ]  # fmt: skip


def test_partitions_of_every_kind_hold_every_value(tmp_path: Path) -> None:
    rows = pa.table(
        {"t": ["a b/c=%é", None, "x"], "n": [1, None, -1], "b": [True, None, False], "v": [1, 2, 3]}
    )
    for number, make in enumerate(CASES.values()):
        case = make(tmp_path)
        name = f"p{number}"
        publisher = begun(case.make(name, rows.schema, partition_by=["t", "n", "b"]))
        publisher.publish(1, [StagedPart(0, 3, lambda: rows)])
        found = case.rows(name)
        assert found is not None
        assert sorted(map(repr, found.select(rows.column_names).to_pylist())) == sorted(
            map(repr, rows.to_pylist())
        )


@pytest.mark.parametrize(
    ("columns", "how", "told"),
    [
        (
            {"user": pa.string(), "n": pa.string()},
            {},
            r"column 'n' as int64, the rows have it as string; cast",
        ),
        ({"new": pa.string()}, {}, r"has no column for 'new' \(string\); add it to the table"),
        ({"n": pa.int64()}, {"partition_by": ["user"]}, "the rows have no column 'user'"),
        (
            {"n": pa.float64(), "x": pa.int64()},
            {"partition_by": ["n"]},
            r"not partitioned by column 'n' \(double\)",
        ),
        ({"n": pa.int64()}, {"partition_by": ["n"]}, "leaves no column for the files"),
    ],
)
def test_columns_that_the_table_cannot_take_are_refused_before_anything_runs(
    case: Case, columns: dict[str, pa.DataType], how: dict[str, Any], told: str
) -> None:
    begun(case.make("t"))
    with pytest.raises(DefinitionError, match=told):
        case.make("t", pa.schema(columns), **how)


def test_fewer_columns_in_another_order_go_to_those_of_their_names(case: Case) -> None:
    begun(case.make("t")).publish(1, [part(1)])
    rows = pa.table({"n": pa.array([2], pa.int64())})
    again = case.make("t", rows.schema).publisher("job", "out")
    again.publish(2, [StagedPart(0, 1, lambda: rows)])
    found = case.rows("t")
    assert found is not None
    assert {row["n"]: row["user"] for row in found.to_pylist()} == {1: "u1", 2: None}


def test_rows_that_wait_for_a_table_which_lost_their_column_are_not_cut(case: Case) -> None:
    """An upgrade, or another hand, has changed the table while the sink was behind."""
    begun(case.make("t", pa.schema([("n", pa.int64())]))).publish(1, [StagedPart(0, 1, lambda: NUMBER)])
    behind = case.make("t", pa.schema([("n", pa.int64())])).publisher("job", "out")
    with pytest.raises(DefinitionError, match=r"table .* has no column for 'user' \(string\); add it"):
        behind.publish(2, [part(2)])
    assert case.numbers("t") == [1]
    text = pa.table({"n": ["3"]})
    with pytest.raises(DefinitionError, match="has column 'n' as int64, the rows have it as string"):
        behind.publish(3, [StagedPart(0, 1, lambda: text)])
    behind.publish(4, [StagedPart(0, 1, lambda: NUMBER)])
    assert case.numbers("t") == [1, 1]


class Elsewhere:
    """Stands for Spark's tasks: files are written there, by what was pickled. `written`: how often."""

    def __init__(self) -> None:
        self.written, self.inside = 0, False

    def __call__(self, files: Any) -> LanePublisher:
        def write(waiting: Sequence[LaneRows]) -> list[Result | Exception]:
            self.written += 1
            self.inside = True
            task = LaneTask(pickle.loads(pickled), 1, (tuple(waiting),))
            try:
                batches = run_lanes(task, iter([pa.record_batch({"id": [0]})]))
                return [_told(decode_answer(data)) for batch in batches for data in batch[0].to_pylist()]
            finally:
                self.inside = False

        pickled = pickle.dumps(files)
        return LanePublisher(files, elsewhere=write, clock=ManualClock())

    def part(self, number: int, *numbers: int) -> StagedPart:
        """One of many rows, which are not to be loaded where the commit is made."""
        of = part(*numbers)

        def load() -> pa.Table:
            assert self.inside
            return of.load()

        return replace(of, part=number, load=load, input="slices", bytes=ELSEWHERE_FROM_BYTES)


def begun_with(elsewhere: Elsewhere, sink: Sink) -> Any:
    publisher = begun(sink)
    assert isinstance(publisher, FilingPublisher)
    publisher.write_with(elsewhere)
    return publisher


def test_no_row_of_a_large_epoch_passes_through_the_driver(tmp_path: Path) -> None:
    case, elsewhere = delta_case(tmp_path), Elsewhere()
    publisher = begun_with(elsewhere, case.make("t", partition_by=["user"]))
    publisher.publish(1, [elsewhere.part(0, 1, 2), elsewhere.part(17, 3), elsewhere.part(1, 4)])
    publisher.publish(1, [elsewhere.part(0, 1, 2), elsewhere.part(17, 3), elsewhere.part(1, 4)])
    publisher.publish(2, [part(5)])
    rows = case.rows("t")
    assert rows is not None
    shown = sorted(zip(rows["n"].to_pylist(), rows["user"].to_pylist(), strict=True))
    assert shown == [(1, "u1"), (2, "u0"), (3, "u1"), (4, "u0"), (5, "u1")]
    assert elsewhere.written == 1


def test_the_rows_of_a_file_are_in_memory_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delta, "FILE_BYTES", 2 * part(1).load().nbytes)
    case, elsewhere = delta_case(tmp_path), Elsewhere()
    in_one_lane = [elsewhere.part(16 * number, number) for number in range(5)]
    begun_with(elsewhere, case.make("t")).publish(1, in_one_lane)
    assert case.numbers("t") == [0, 1, 2, 3, 4]
    assert len(DeltaTable(tmp_path / "t").file_uris()) == 3


def test_a_commit_that_was_refused_is_made_again_with_the_files_that_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else an epoch that takes long to write never comes between those of other writers."""
    case, elsewhere, refused = delta_case(tmp_path), Elsewhere(), iter(range(3))
    publisher, commit = begun_with(elsewhere, case.make("t")), case.look.commit

    def beside(look: Any, rows: Any, mark: Any, files: Any = ()) -> None:
        if next(refused, None) is not None:
            case.append("t", part(7).load())
        commit(look, rows, mark, files)

    monkeypatch.setattr(case.look, "commit", beside)
    publisher.publish(1, [elsewhere.part(0, 1)])
    assert case.numbers("t") == [1, 7, 7, 7]
    assert elsewhere.written == 1


def test_files_are_written_again_for_a_table_that_has_got_other_columns_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case, elsewhere, changed = delta_case(tmp_path), Elsewhere(), iter(range(1))
    publisher, commit = begun_with(elsewhere, case.make("t")), case.look.commit

    def beside(look: Any, rows: Any, mark: Any, files: Any = ()) -> None:
        if next(changed, None) is not None:
            more = part(7).load().append_column("more", pa.array([8], pa.int64()))
            write_deltalake(tmp_path / "t", more, mode="append", schema_mode="merge")
        commit(look, rows, mark, files)

    monkeypatch.setattr(case.look, "commit", beside)
    publisher.publish(1, [elsewhere.part(0, 1)])
    rows = case.rows("t")
    assert rows is not None
    assert dict(zip(rows["n"].to_pylist(), rows["more"].to_pylist(), strict=True)) == {1: None, 7: 8}
    assert elsewhere.written == 2


def test_files_that_tasks_wrote_elsewhere_are_not_named(tmp_path: Path) -> None:
    """As on a disk of their own machine, or in a bucket of another server."""
    case, elsewhere = delta_case(tmp_path / "here"), Elsewhere()
    publisher = begun_with(elsewhere, case.make("t"))
    write = elsewhere.__call__

    def there(files: Any) -> LanePublisher:
        (tmp_path / "there").mkdir()
        return write(replace(files, path=str(tmp_path / "there")))

    publisher.write_with(there)
    with pytest.raises(DefinitionError, match="it is not there for the driver; let the path"):
        publisher.publish(1, [elsewhere.part(0, 1)])
    assert list((tmp_path / "there").glob("*.parquet"))
    assert case.numbers("t") == []


def test_what_goes_wrong_while_files_are_written_is_told_where_the_epoch_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case, elsewhere = delta_case(tmp_path), Elsewhere()
    publisher = begun_with(elsewhere, case.make("t", pa.schema([("n", pa.int64())])))
    with pytest.raises(DefinitionError, match=r"table .* has no column for 'user' \(string\); add it"):
        publisher.publish(1, [elsewhere.part(0, 1)])

    def away(storage: Any, name: str, data: bytes) -> None:
        raise StorageError("the disk is away; wait")

    monkeypatch.setattr(LocalStorage, "put", away)
    publisher = begun_with(elsewhere, case.make("other"))
    with pytest.raises(Unavailable, match=r"did not take epoch 1 in lane 0: .*the disk is away"):
        publisher.publish(1, [elsewhere.part(0, 1)])
    assert case.numbers("other") == []


def test_a_table_of_iceberg_needs_a_namespace() -> None:
    with pytest.raises(DefinitionError, match=r"write 'namespace.name'"):
        IcebergSink("events")


NOT_THERE = {
    "delta": lambda path: OSError(
        "Kernel error -> Generic S3 error\n  \x1b[31m↳\x1b[0m Error performing GET http://127.0.0.1:1/b/x\n"
        "   \x1b[31m↳\x1b[0m tcp connect error\n    \x1b[31m↳\x1b[0m Connection refused (os error 111)\n"
    ),
    "iceberg": lambda path: ServiceUnavailableError("503: the catalog is busy"),
}
SHUT = {
    "delta": lambda path: OSError("Generic S3 error\n Server returned non-2xx status code\n 403 Forbidden\n"),
    "iceberg": lambda path: ForbiddenError("the role may not"),
}

NO_CONTAINER = OSError(
    "Generic MicrosoftAzure error\n Error performing list request\n Error performing GET "
    "http://127.0.0.1:1/account/container?restype=container&comp=list in 7ms - Server returned non-2xx "
    "status code\n 404 Not Found\n <Error><Code>ContainerNotFound</Code></Error>\n"
)
"""What Delta's library says of it. (Those for Iceberg have it in their texts, too.)"""


class Catalogs:
    """Stands in for the library's way to a table: fails as long as `failure` says so."""

    failure: Exception | None = None

    def __init__(self, case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
        if case.look is delta._DeltaLook:
            load = delta._library().DeltaTable
            monkeypatch.setattr(delta._library(), "DeltaTable", self._failing(load, load.create))
        else:
            monkeypatch.setattr(SqliteCatalog, "load_table", self._failing(SqliteCatalog.load_table))

    def _failing(self, real: Any, create: Any = None) -> Any:
        def load(*given: Any, **named: Any) -> Any:
            if self.failure is not None:
                raise self.failure
            return real(*given, **named)

        load.create = create  # type: ignore[attr-defined]
        return load


@pytest.fixture
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.node.callspec.params["case"])


def test_a_table_that_is_away_is_waited_for_and_its_rows_are_shown_once_when_it_is_back(
    case: Case, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalogs, sink = Catalogs(case, monkeypatch), case.sink("t")
    catalogs.failure = NOT_THERE[kind]("t")
    sink.check_schema(COLUMNS)
    publisher = sink.publisher("job", "out")
    asked: list[Callable[[], object]] = [publisher.mark, lambda: publisher.begin(0)]
    asked += [lambda: publisher.publish(1, [part(1, 2)])]
    for ask in asked:
        with pytest.raises(Unavailable, match="is not to be had") as told:
            ask()
        assert not set("\n\x1b↳") & set(str(told.value)), "one plain line"
    catalogs.failure = None
    publisher.begin(0)
    publisher.publish(1, [part(1, 2)])
    assert case.numbers("t") == [1, 2]


def test_a_table_that_lets_nobody_in_is_one_clear_error(
    case: Case, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalogs, sink = Catalogs(case, monkeypatch), case.make("t")
    publisher = begun(sink)
    asked: list[Callable[[], object]] = [lambda: sink.check_schema(COLUMNS), publisher.mark]
    for catalogs.failure in (SHUT[kind]("t"), NO_CONTAINER):
        for ask in asked:
            with pytest.raises(DefinitionError, match=r"cannot be used: .*; check the credentials, their ri"):
                ask()


def test_a_commit_that_is_not_allowed_is_not_tried_again_and_again(
    case: Case, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher, tries = begun(case.make("t")), list[int]()

    def refuse(look: Any, rows: Any, mark: Any) -> None:
        tries.append(mark.epoch)
        raise SHUT[kind]("t")

    monkeypatch.setattr(case.look, "commit", refuse)
    with pytest.raises(DefinitionError, match="check the credentials, their rights"):
        publisher.publish(1, [part(1)])
    assert tries == [1]


def test_a_checkpoint_that_is_away_is_no_outage_of_a_table(case: Case) -> None:
    def load() -> pa.Table:
        raise StorageError("the checkpoint gives no answer")

    with pytest.raises(StorageError, match="the checkpoint gives no answer"):
        begun(case.make("t")).publish(1, [StagedPart(0, 1, load, "slices")])


@pytest.fixture
def answers() -> Iterator[Any]:
    """A REST catalog that answers everything with one status."""

    class Handler(BaseHTTPRequestHandler):
        status = 503

        def do_GET(self) -> None:
            self.send_response(self.status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield Handler, f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def test_a_rest_catalog_that_is_away_is_waited_for_and_one_that_lets_nobody_in_is_refused(
    answers: Any,
) -> None:
    catalog, url = answers
    nobody = IcebergSink("db.t", properties={"type": "rest", "uri": "http://127.0.0.1:1"})
    busy = IcebergSink("db.t", properties={"type": "rest", "uri": url})
    for sink in (nobody, busy):
        sink.check_schema(COLUMNS)
        with pytest.raises(Unavailable, match="Iceberg catalog 'default' cannot be reached: "):
            sink.publisher("job", "out")
    for status in (401, 403):
        catalog.status = status
        for ask in (lambda: busy.check_schema(COLUMNS), lambda: busy.publisher("job", "out")):
            with pytest.raises(DefinitionError, match="Iceberg catalog 'default' cannot be opened"):
                ask()
