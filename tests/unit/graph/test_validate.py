from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest

import holdfast
from holdfast.connectors.memory import MemorySink, MemorySource
from holdfast.errors import DefinitionError, MachineError
from holdfast.graph import aggregates as hf
from holdfast.graph.functions import BatchFunction, KeyedFunction, OperatorFunction
from holdfast.graph.streams import Declaration
from holdfast.graph.uncoordinated import Uncoordinated
from holdfast.graph.validate import check, check_places, mistakes
from holdfast.state.cells.declarations import ListState, ValueState
from holdfast.storage.key_saves.files import FileStateStorage


class Totals(KeyedFunction):
    output = "user string, total long"
    outputs: ClassVar = {"late": "user string"}
    total = ValueState("long", default=0)

    def process(self, row: Any, ctx: Any) -> Any:
        self.total.value += row.value
        yield row.user, self.total.value


class Whole(BatchFunction):
    output = "user string"

    def process(self, rows: Any, ctx: Any) -> Any:
        return rows.select(["user"])


class Seen(OperatorFunction):
    output = "user string"
    outputs: ClassVar = {"again": "user string"}
    users = ListState("string", redistribute="union")

    def process(self, row: Any, ctx: Any) -> Any:
        self.users.append(row.user)
        yield (row.user,)


def source(schema: str = "user string, value long, ts timestamp") -> MemorySource:
    return MemorySource([], schema=schema)


def lines(job: Declaration) -> list[str]:
    return [str(mistake) for mistake in mistakes(job.graph())]


def only(job: Declaration) -> str:
    (line,) = lines(job)
    return line


def keyed(schema: str = "user string, value long, ts timestamp") -> tuple[Declaration, Any]:
    job = Declaration("job")
    return job, job.source(source(schema), uid="words")


def test_a_right_job_has_no_mistakes_and_its_parents_come_first() -> None:
    job, rows = keyed()
    totals = rows.key_by("user", order_by="ts").process(Totals(), uid="totals", on_error="dead-letter")
    totals.sink(MemorySink(), uid="out")
    totals.dead_letters().sink(MemorySink(), uid="dead")
    totals.output("late").union(totals.output("late").transform(lambda df: df)).sink(MemorySink(), uid="late")
    totals.key_by("user").aggregate(uid="sums", top=hf.max("total"), n=hf.count()).sink(
        MemorySink(), uid="top"
    )
    rows.key_by("user").process_batch(Whole(), uid="whole").sink(MemorySink(), uid="whole-out")
    graph = job.graph()
    check(graph)
    kinds = [type(node).__name__ for node in graph.nodes]
    assert kinds[:4] == ["SourceNode", "OperatorNode", "SinkNode", "OutputNode"]
    assert kinds.count("OutputNode") == 2, "asking for an output twice gives one node"


def test_every_mistake_is_reported_at_once_each_on_its_line() -> None:
    job = Declaration("my job")
    rows = job.source(source())
    totals = rows.key_by("user").process(Totals(), uid="totals", on_error="ignore")
    totals.sink(MemorySink(), uid="totals")
    with pytest.raises(DefinitionError) as error:
        check(job.graph())
    first, second, third, fourth = str(error.value).splitlines()
    line = job.graph().place.line
    assert first.startswith(
        f"test_validate.py:{line} job 'my job': its name cannot be used in file names; use "
    )
    assert second.startswith(f"test_validate.py:{line + 1} source: it has no uid")
    assert third == (
        f"test_validate.py:{line + 2} operator 'totals': on_error='ignore' is not known; "
        "use one of 'fail', 'dead-letter'"
    )
    assert fourth.startswith(
        f"test_validate.py:{line + 3} sink 'totals': uid 'totals' is taken by the operator"
    )


def test_a_job_without_source_and_sink_says_both() -> None:
    found = lines(Declaration("job"))
    assert len(found) == 2
    assert "source(" in found[0]
    assert "sink(" in found[1]


@pytest.mark.parametrize("uid", ["a b", "a/b", "ä", "-a", "x" * 101, 7])
def test_a_uid_that_cannot_be_a_file_name_is_refused(uid: Any) -> None:
    job, rows = keyed()
    rows.sink(MemorySink(), uid=uid)
    assert "cannot be used in file names" in only(job)


@pytest.mark.parametrize(
    ("columns", "order_by", "wrong"),
    [
        ((), (), "names no column"),
        (("user", "user"), (), "names a column twice"),
        (("usr",), (), "key column 'usr' does not exist; there are user, value, ts"),
        (("user",), "time", "order_by column 'time' does not exist"),
        ((5,), (), "is not a name"),
    ],
)
def test_wrong_key_columns_are_found_without_spark(columns: Any, order_by: Any, wrong: str) -> None:
    job, rows = keyed()
    rows.key_by(*columns, order_by=order_by).process(Totals(), uid="totals").sink(MemorySink(), uid="out")
    assert wrong in only(job)


def test_columns_after_a_transform_are_left_to_spark() -> None:
    job, rows = keyed()
    rows.transform(lambda df: df).key_by("made").process(Totals(), uid="totals").sink(MemorySink(), uid="out")
    assert lines(job) == []


def test_a_map_cannot_be_a_key() -> None:
    job, rows = keyed("user map<string,int>")
    rows.key_by("user").process(Totals(), uid="totals").sink(MemorySink(), uid="out")
    assert "holds a map" in only(job)


def test_an_unreadable_source_schema_is_named() -> None:
    job, rows = keyed("user strin")
    rows.sink(MemorySink(), uid="out")
    assert "source 'words': its schema cannot be read" in only(job)


def test_a_union_needs_the_same_columns_in_any_order() -> None:
    job = Declaration("job")
    one, two = job.source(source("a int, b int"), uid="one"), job.source(source("b int, a int"), uid="two")
    three = job.source(source("a int, b long"), uid="three")
    one.union(two).sink(MemorySink(), uid="right")
    assert lines(job) == []
    one.union(three).sink(MemorySink(), uid="wrong")
    assert "'a int, b int' and 'a int, b long'" in only(job)


def test_a_stream_of_another_job_cannot_join() -> None:
    job, rows = keyed()
    _, foreign = keyed()
    rows.union(foreign, rows).sink(MemorySink(), uid="out")
    assert "not a stream of this job" in only(job)


@pytest.mark.parametrize(
    ("function", "wrong"),
    [
        (Totals, "give an instance: Totals()"),
        (len, "derive its class"),
        (KeyedFunction(), "declares no output"),
    ],
)
def test_what_is_not_a_function_is_refused(function: Any, wrong: str) -> None:
    job, rows = keyed()
    rows.key_by("user").process(function, uid="totals").sink(MemorySink(), uid="out")
    assert any(wrong in line for line in lines(job))


@pytest.mark.parametrize(
    ("aggregates", "wrong"),
    [
        ({}, "nothing to compute"),
        ({"total": "value"}, "total: not an aggregate"),
        ({"total": hf.sum("val")}, "no such column"),
        ({"total": hf.sum("user")}, "numeric"),
        ({"user": hf.count()}, "named like a key column"),
    ],
)
def test_wrong_aggregates_are_refused(aggregates: Any, wrong: str) -> None:
    job, rows = keyed()
    rows.key_by("user").aggregate(uid="sums", **aggregates).sink(MemorySink(), uid="out")
    assert wrong in only(job)


def test_an_output_that_the_function_does_not_declare_is_refused() -> None:
    job, rows = keyed()
    totals = rows.key_by("user").process(Totals(), uid="totals")
    totals.dead_letters().sink(MemorySink(), uid="dead")
    totals.output("early").sink(MemorySink(), uid="early")
    dead, early = lines(job)
    assert "declare it with on_error='dead-letter'" in dead
    assert "it has: late" in early


def test_rows_of_a_batch_cannot_be_set_aside() -> None:
    job, rows = keyed()
    rows.key_by("user").process(Whole(), uid="whole", on_error="dead-letter").sink(MemorySink(), uid="out")
    assert "only a function that sees single rows can set them aside" in only(job)


class Picky(MemorySink):
    """Shows no column called `total`."""

    def check_schema(self, schema: pa.Schema) -> None:
        if "total" in schema.names:
            raise DefinitionError(f"no room for 'total' ({schema.field('total').type}); rename it")


def test_a_sink_refuses_columns_that_are_known_without_spark() -> None:
    job, rows = keyed("user string, total array<long>")
    rows.sink(Picky(), uid="rows")
    rows.union(rows).sink(Picky(), uid="both")
    totals = rows.key_by("user").process(Totals(), uid="totals", on_error="dead-letter")
    totals.sink(Picky(), uid="main")
    totals.output("late").sink(Picky(), uid="late")
    rows.key_by("user").aggregate(uid="sums", total=hf.count()).sink(Picky(), uid="sums-out")
    rows.transform(lambda df: df).sink(Picky(), uid="only-spark-knows")
    rows.sink(MemorySink(), uid="takes-all")
    types = {"rows": "list<item: int64>", "both": "list<item: int64>", "main": "int64", "sums-out": "int64"}
    assert [line.split(" ", 1)[1] for line in lines(job)] == [
        f"sink {uid!r}: no room for 'total' ({type}); rename it" for uid, type in types.items()
    ]


def test_a_sink_is_asked_about_dead_letters() -> None:
    class NoErrors(MemorySink):
        def check_schema(self, schema: pa.Schema) -> None:
            if "error" in schema.names:
                raise DefinitionError("errors are not shown here; choose another sink")

    job, rows = keyed()
    totals = rows.key_by("user").process(Totals(), uid="totals", on_error="dead-letter")
    totals.sink(NoErrors(), uid="main")
    totals.dead_letters().sink(NoErrors(), uid="dead")
    assert "sink 'dead': errors are not shown here; choose another sink" in only(job)


@pytest.mark.parametrize("wrong", [MemorySource, 5])
def test_what_is_not_a_source_or_sink_is_refused(wrong: Any) -> None:
    job = Declaration("job")
    job.source(wrong, uid="in").sink(wrong, uid="out")
    first, second = lines(job)
    assert "is not a source" in first
    assert "is not a sink" in second


def test_an_operator_without_keys_is_an_operator_like_others() -> None:
    job, rows = keyed()
    seen = rows.process(Seen(), uid="seen", on_error="dead-letter")
    seen.sink(MemorySink(), uid="out")
    seen.output("again").sink(MemorySink(), uid="again")
    seen.dead_letters().key_by("key").aggregate(uid="dead", n=hf.count()).sink(MemorySink(), uid="dead-out")
    check(job.graph())
    assert [node.uid for node in job.graph().operators] == ["seen", "dead"]


def test_an_operator_without_keys_needs_a_uid_and_columns_of_its_own() -> None:
    job, rows = keyed()
    rows.process(Seen()).key_by("usr").process(Totals(), uid="totals").sink(MemorySink(), uid="out")
    first, second = lines(job)
    assert "operator: it has no uid" in first
    assert "key column 'usr' does not exist; there are user" in second


@pytest.mark.parametrize(
    ("declare", "wrong"),
    [
        (lambda rows: rows.process(Totals(), uid="op"), "is not a function of a stream without keys"),
        (lambda rows: rows.process(Whole(), uid="op"), "is not a function of a stream without keys"),
        (lambda rows: rows.process(Seen, uid="op"), "Seen is a class; give an instance: Seen()"),
        (lambda rows: rows.key_by("user").process(Seen(), uid="op"), "is not a function of a keyed stream"),
    ],
)
def test_keyed_and_other_functions_are_not_taken_for_one_another(declare: Any, wrong: str) -> None:
    job, rows = keyed()
    declare(rows).sink(MemorySink(), uid="out")
    assert wrong in "\n".join(lines(job))


class Counting(Seen):
    users = ValueState("long")


class Spread(Totals):
    total = ListState("long", redistribute="split")


class Nothing(OperatorFunction):
    output = "user string"


@pytest.mark.parametrize(
    ("function", "wrong"),
    [
        (Counting(), "Counting.users is a ValueState; an OperatorFunction can have ListState only"),
        (Nothing(), "Nothing has no process method; write one"),
    ],
)
def test_what_an_operator_function_cannot_be(function: Any, wrong: str) -> None:
    job, rows = keyed()
    rows.process(function, uid="op").sink(MemorySink(), uid="out")
    assert wrong in only(job)


class Forgetful(Seen):
    """Forgets the `yield`."""

    def process(self, row: Any, ctx: Any) -> Any:
        if row.user is None:
            return
        ctx.emit_to("again", (row.user,))
        (row.user,)  # noqa: B018


class Returning(Seen):
    def process(self, row: Any, ctx: Any) -> Any:
        return [(row.user,)] if row.user else None


def test_an_output_that_is_used_and_never_written_is_refused() -> None:
    job, rows = keyed()
    forgetful = rows.process(Forgetful(), uid="op")
    forgetful.output("again").sink(MemorySink(), uid="again")
    check(job.graph())
    forgetful.sink(MemorySink(), uid="out")
    assert "operator 'op': Forgetful.process yields no rows, but its output is used; yield rows" in only(job)


def test_a_function_that_returns_its_rows_writes_its_output() -> None:
    job, rows = keyed()
    rows.process(Returning(), uid="op").union(rows.process(Returning(), uid="op2")).sink(
        MemorySink(), uid="out"
    )
    check(job.graph())


def test_state_per_key_is_not_redistributed() -> None:
    job, rows = keyed()
    rows.key_by("user").process(Spread(), uid="op").sink(MemorySink(), uid="out")
    assert "Spread.total says redistribute, but state per key moves with its key; leave" in only(job)


def test_an_unknown_redistribution_is_refused_where_it_is_declared() -> None:
    with pytest.raises(DefinitionError, match="redistribute='all' is not known; use one of 'split', 'union'"):
        ListState("string", redistribute="all")  # type: ignore[arg-type]


def test_the_example_of_the_page_on_operator_state_is_a_right_job() -> None:
    page = (Path(__file__).parents[3] / "docs" / "how-to" / "operator-state.md").read_text()
    example = page.partition("```python\n")[2].partition("```")[0]
    job = Declaration("job")
    exec(example, {"hf": holdfast, "job": job, "source": source("word string"), "sink": MemorySink()})
    check(job.graph())
    assert [node.uid for node in job.graph().operators] == ["sample"]


def files(tmp_path: Path, **settings: Any) -> holdfast.FileSource:
    return holdfast.FileSource(tmp_path, **{"format": "json", "schema": "n long", **settings})


def test_a_source_sets_rows_aside_only_where_they_are_told_apart_and_read(tmp_path: Path) -> None:
    job = Declaration("job")
    events = job.source(files(tmp_path), uid="events", on_error="dead-letter", stalled_after="5m")
    events.sink(MemorySink(), uid="out")
    assert "sets malformed rows aside, and nothing reads them; end its dead_letters() with sink(" in only(job)
    events.dead_letters().sink(MemorySink(), uid="bad")
    assert lines(job) == []
    for other in (
        source(),
        files(tmp_path, format="parquet"),
        files(tmp_path, mode="permissive"),
    ):
        job = Declaration("job")
        rows = job.source(other, uid="rows", on_error="dead-letter")
        rows.sink(MemorySink(), uid="out")
        rows.dead_letters().sink(MemorySink(), uid="bad")
        assert "it cannot tell malformed rows apart" in only(job)


def test_wrong_words_about_a_source_are_named(tmp_path: Path) -> None:
    wrong: Any = "ignore"
    job = Declaration("job")
    events = job.source(files(tmp_path), uid="events", on_error=wrong)
    events.sink(MemorySink(), uid="out")
    assert "on_error='ignore' is not known; use one of 'fail', 'dead-letter'" in only(job)
    job = Declaration("job")
    events = job.source(files(tmp_path), uid="events")
    events.sink(MemorySink(), uid="out")
    events.dead_letters().sink(MemorySink(), uid="bad")
    assert "source 'events' sets no rows aside; declare it with on_error='dead-letter'" in only(job)
    for given in ("5 minutes", "soon", "0s", 300):
        duration: Any = given
        job = Declaration("job")
        job.source(source(), uid="rows", stalled_after=duration).sink(MemorySink(), uid="out")
        assert f"stalled_after={given!r} is not a duration; write a number and a unit" in only(job)


def test_the_columns_of_a_sources_dead_letters_are_known(tmp_path: Path) -> None:
    job = Declaration("job")
    events = job.source(files(tmp_path), uid="events", on_error="dead-letter")
    events.sink(MemorySink(), uid="out")
    events.dead_letters().key_by("nothing").process(Totals(), uid="totals").sink(MemorySink(), uid="bad")
    assert "key column 'nothing' does not exist; there are file, line, row, reason, epoch" in only(job)


def _ttl_function(base: Any, **given: Any) -> Any:
    class Short(base):
        output = "user string"
        kept = ListState("long", **given) if base is OperatorFunction else ValueState("long", **given)

        def process(self, row: Any, ctx: Any) -> Any:
            yield (row.user,)

    return Short()


def test_event_time_without_a_watermark_ends_no_state() -> None:
    function = _ttl_function(KeyedFunction, ttl="7d", clock="event")
    job, stream = keyed()
    stream.key_by("user").process(function, uid="short").sink(MemorySink(), uid="out")
    assert "Short.kept expires by event time, and there is no watermark before this operator" in only(job)
    job, stream = keyed()
    timed = stream.watermark("ts", delay="10s")
    timed.key_by("user").process(function, uid="short").sink(MemorySink(), uid="out")
    assert lines(job) == []


def test_state_without_keys_and_keys_that_are_saved_on_their_own_have_no_ttl() -> None:
    job, stream = keyed()
    stream.process(_ttl_function(OperatorFunction, ttl="7d"), uid="short").sink(MemorySink(), uid="out")
    assert "Short.kept has a ttl, but state without keys has none; leave it out" in only(job)
    job, stream = keyed()
    function = _ttl_function(KeyedFunction, ttl="7d")
    saved = Uncoordinated(storage=FileStateStorage("states"), every="20s")
    stream.key_by("user").process(function, uid="short", protection=saved).sink(MemorySink(), uid="out")
    assert "what has expired would come back from their saves; leave out ttl, or protection" in only(job)


def test_the_ttl_of_an_aggregate_is_checked_with_everything_else() -> None:
    job, stream = keyed()
    stream.key_by("user").aggregate(uid="sums", ttl="0s", n=hf.count()).sink(MemorySink(), uid="out")
    assert "ttl='0s' is no time at all" in only(job)


def test_windows_of_time_without_a_column_are_one_mistake_whatever_reads_them() -> None:
    class Rows(holdfast.WindowFunction):
        output = "n long"

        def process(self, window: Any, rows: Any, ctx: Any) -> Any:
            yield (len(list(rows)),)

    def whole(windows: Any) -> Any:
        return windows.aggregate(uid="windows", n=hf.count())

    def reduced(windows: Any) -> Any:
        return windows.reduce(lambda one, other: one, uid="windows")

    def processed(windows: Any) -> Any:
        return windows.process(Rows(), uid="windows")

    for window in (holdfast.tumbling("5m"), holdfast.sliding("5m", every="1m"), holdfast.session("5m")):
        for computed in (whole, reduced, processed):
            job, rows = keyed()
            made = computed(rows.watermark("ts").key_by("user").window(window))
            made.sink(MemorySink(), uid="out")
            made.late().sink(MemorySink(), uid="late")
            assert "its windows go by time, and no column is named; say on='ts'" in only(job)


def test_negative_durations_are_told_as_such_everywhere() -> None:
    job, rows = keyed()
    marked = rows.watermark("ts", delay="-5m", idle_after="-1s")
    marked.lookup("prices/", on="user", refresh="-1h", uid="prices").sink(MemorySink(), uid="a")
    marked.key_by("user").aggregate(uid="sums", ttl="-7d", n=hf.count()).sink(MemorySink(), uid="b")
    marked.key_by("user").window(holdfast.session("-30m"), on="ts").aggregate(
        uid="visits", n=hf.count()
    ).sink(MemorySink(), uid="c")
    job.source(source(), uid="slow", stalled_after="-5m").sink(MemorySink(), uid="d")
    found = "\n".join(lines(job))
    for text in ("-5m", "-1s", "-1h", "-7d", "-30m"):
        assert f"{text!r} is negative" in found
    assert "stalled_after='-5m' is negative" in found
    assert "not a duration" not in found


@pytest.mark.parametrize(
    ("type", "remedy"),
    [
        (
            "string",
            "declare it timestamp in the schema, or make one with transform(...): to_timestamp(column)",
        ),
        ("long", "make one with transform(...), such as timestamp_millis(column)"),
        ("date", "make one with transform(...)"),
    ],
)
def test_what_to_do_about_a_time_of_another_type_depends_on_the_type(type: str, remedy: str) -> None:
    job, rows = keyed(f"user string, ts {type}")
    rows.watermark("ts").key_by("user").window(holdfast.tumbling("5m"), on="ts").aggregate(
        uid="windows", n=hf.count()
    ).sink(MemorySink(), uid="out")
    first, second = lines(job)
    assert first.endswith(f"not timestamp; {remedy}")
    assert second.endswith(f"not timestamp; {remedy}")


def test_a_channel_is_a_sink_and_keeps_something() -> None:
    job = Declaration("job")
    rows = job.source(source(), uid="in")
    rows.sink(holdfast.ChannelSink(), uid="orders")
    assert lines(job) == []
    rows.sink(holdfast.ChannelSink(keep_epochs=0), uid="orders")
    keeps, taken = lines(job)
    assert "sink 'orders': keep_epochs=0 keeps nothing; give the number of epochs" in "".join((keeps, taken))
    assert "uid 'orders' is taken by the sink 'orders'" in "".join((keeps, taken))


class Unreadable(MemorySource):
    def check(self) -> None:
        raise DefinitionError("there is no table orders; create it")


class Unwritable(MemorySink):
    def check(self) -> None:
        raise MachineError("the client library is missing; install it")


def test_what_a_source_or_a_sink_refuses_says_where_it_was_declared() -> None:
    job = Declaration("shop")
    job.source(Unreadable([], schema="user string"), uid="orders").sink(MemorySink(), uid="out")
    with pytest.raises(DefinitionError, match=r"test_validate\.py:\d+ source 'orders': there is no table"):
        check_places(job.graph())
    other = Declaration("shop")
    other.source(source(), uid="orders").sink(Unwritable(), uid="out")
    with pytest.raises(MachineError, match=r"test_validate\.py:\d+ sink 'out': the client library is"):
        check_places(other.graph())


class Refused(MemorySink):
    def check(self) -> None:
        raise DefinitionError("there is no exchange orders; create it")


def test_where_a_job_goes_on_a_sink_that_refuses_does_not_keep_it_from_starting() -> None:
    """It has taken the job before, and stops alone. What this machine lacks another one may have."""
    job = Declaration("shop")
    job.source(source(), uid="orders").sink(Refused(), uid="out")
    with pytest.raises(DefinitionError, match="there is no exchange"):
        check_places(job.graph())
    check_places(job.graph(), lambda: True)
    lacking = Declaration("shop")
    lacking.source(source(), uid="orders").sink(Unwritable(), uid="out")
    with pytest.raises(MachineError):
        check_places(lacking.graph(), lambda: True)


def test_a_column_that_is_a_field_of_another_one_is_told_how_to_be_had() -> None:
    job = Declaration("shop")
    rows = job.source(source("value struct<user string, n long>, at timestamp"), uid="orders")
    rows.key_by("user").aggregate(n=hf.count(), uid="counts").sink(MemorySink(), uid="out")
    wanted = "it is a field of 'value': transform(lambda frame: frame.select('value.*'))"
    assert any(wanted in line for line in lines(job))
