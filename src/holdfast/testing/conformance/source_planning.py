"""What every source promises about planning."""

from __future__ import annotations

from holdfast.connectors.contract import (
    AcknowledgingReader,
    CheckedSource,
    DatedReader,
    EndingReader,
    MonitoredReader,
    Slice,
    Source,
    TellingReader,
    TrimmingReader,
    Waiting,
    WaitingReader,
)
from holdfast.state.encoding.types import parse_schema
from holdfast.testing.conformance.promises import NotAsked, Suite, hold
from holdfast.testing.conformance.source_case import NOW_MS, SourceCase, stored, stored_slice

PLANNING: Suite[SourceCase] = Suite()


@PLANNING.promise(
    "source",
    "a source has schema, replayable and reader; its reader has next, exhausted, frame and lag",
    "write what is missing; `schema` is Spark SQL such as 'user string, n long', `replayable` True or False",
)
def _is_a_source(case: SourceCase) -> None:
    source = case.make()
    hold(isinstance(source, Source), f"{type(source).__name__} lacks one of schema, replayable, reader")
    parse_schema(source.schema)
    hold(isinstance(source.replayable, bool), f"replayable is {source.replayable!r}")
    reader = source.reader([])
    missing = [name for name in ("next", "exhausted", "frame", "lag") if not hasattr(reader, name)]
    hold(not missing, f"the reader {type(reader).__name__} lacks {', '.join(missing)}")


@PLANNING.promise(
    "check",
    "check() raises DefinitionError only for a source that can never be read",
    "let check() pass where the input is there",
)
def _check_passes(case: SourceCase) -> None:
    source = case.make()
    if not isinstance(source, CheckedSource):
        raise NotAsked("it has no check()")
    source.check()


@PLANNING.promise(
    "slices-follow",
    "the first slice starts at None, each other one where the one before it ended",
    "give Slice(start=after, ...) from next(after, ...), and the position of the last row in it as its end",
)
def _slices_follow(case: SourceCase) -> None:
    before = None
    for number, slice in enumerate(case.slices(), start=1):
        hold(slice.start == before, f"slice {number} starts at {slice.start!r}, after {before!r}: {slice}")
        before = slice.end


@PLANNING.promise(
    "no-empty-slices",
    "where nothing new is there, next gives None, and goes on giving None",
    "return None instead of a slice that ends where it starts, or has no rows",
)
def _no_empty_slices(case: SourceCase) -> None:
    reader = case.reader()
    slices = case.plan(reader, case.limit)
    hold(slices, "nothing was planned at all")
    for slice in slices:
        hold(slice.end != slice.start and slice.rows != 0, f"a slice without rows: {slice}")
    again = reader.next(slices[-1].end, case.limit, NOW_MS)
    hold(again is None, f"next gave None, and for the same position then {again}")


@PLANNING.promise(
    "max-rows",
    "a slice has no more than max_rows rows, exactly or about",
    "cut the slice in next; if whole files or the like can only be planned whole, say so in the source's "
    'documentation and check with max_rows="approximate"',
)
def _max_rows(case: SourceCase) -> None:
    slices = case.slices()
    hold(len(slices) > 1, f"with max_rows={case.limit} all {case.rows_of(slices)} rows are one slice")
    if case.max_rows == "exact":
        for slice in slices:
            rows = case.rows_in(slice)
            hold(rows <= case.limit, f"with max_rows={case.limit} a slice of {rows} rows: {slice}")


@PLANNING.promise(
    "limit-loses-nothing",
    "however the input is cut into slices, they hold all of it",
    "begin the next slice exactly where the one before it ended: with the first row that it left out",
)
def _limit_loses_nothing(case: SourceCase) -> None:
    whole, cut = case.rows_of(case.plan(case.reader(), None)), case.rows_of(case.slices())
    hold(whole == cut, f"{whole} rows without a limit, {cut} with max_rows={case.limit}")


@PLANNING.promise(
    "json",
    "start, end, detail and notes come back from JSON as they were",
    "use None, booleans, numbers, text, lists and dicts with text as keys: tuples come back as lists",
)
def _json(case: SourceCase) -> None:
    for slice in case.slices():
        hold(stored_slice(slice) == slice, f"{slice} comes back as {stored_slice(slice)}")


@PLANNING.promise(
    "goes-on",
    "another run goes on after the last slice, by its end and the notes alone",
    "keep all that `next` needs in the position and in Slice.notes, and take it up in reader(notes)",
)
def _goes_on(case: SourceCase) -> None:
    case.needs_replay()
    first, *rest = case.slices()
    again = case.plan(case.reader([first]), case.limit, stored(first.end))
    wanted, got = case.rows_of(rest), case.rows_of(again)
    hold(got == wanted, f"after {first} another run plans {got} rows, this one {wanted}")


@PLANNING.promise(
    "older-position",
    "next called again with an older position plans everything from there",
    "plan from `after`, not from what was planned last",
)
def _older_position(case: SourceCase) -> None:
    case.needs_replay()
    reader = case.reader()
    first, *rest = case.plan(reader, case.limit)
    again = case.plan(reader, case.limit, first.end)
    wanted, got = case.rows_of(rest), case.rows_of(again)
    hold(got == wanted, f"after {first.end!r} first {wanted} rows were planned, then {got}")


@PLANNING.promise(
    "exhausted",
    "exhausted is true at the end of the input, and nowhere else",
    "compare `after` with the end; a source without end answers False always (check with endless=True)",
)
def _exhausted(case: SourceCase) -> None:
    reader = case.reader()
    slices = case.plan(reader, case.limit)
    at_end = reader.exhausted(slices[-1].end)
    hold(at_end is (not case.endless), f"exhausted({slices[-1].end!r}) is {at_end!r} at the end")
    if len(slices) > 1:
        hold(
            not reader.exhausted(slices[0].end), f"exhausted({slices[0].end!r}) is true after the first slice"
        )


@PLANNING.promise(
    "lag",
    "lag is the number of rows after a position, or None where that is not known cheaply",
    "count the rows after `after`, or return None",
)
def _lag(case: SourceCase) -> None:
    reader = case.reader()
    slices = case.plan(reader, case.limit)
    for number, slice in enumerate(slices, start=1):
        lag = reader.lag(slice.end)
        if lag is not None:
            left = case.rows_of(slices[number:])
            hold(lag == left, f"lag({slice.end!r}) is {lag!r}, but {left} rows are left")


@PLANNING.promise(
    "end-at",
    "after end_at nothing is planned beyond that end, in this run and in another",
    "remember the end, cut slices there, and give back the end that was given",
)
def _end_at(case: SourceCase) -> None:
    reader = case.reader()
    first = reader.next(None, case.limit, NOW_MS)
    if not isinstance(reader, EndingReader):
        raise NotAsked("its reader has no end_at")
    assert first is not None
    end = stored(reader.end_at(first.end, NOW_MS, None))
    last = case.plan(reader, case.limit, first.end)[-1:]
    hold(last and last[0].end == end, f"it was to end at {end!r}, and planned up to {last}")
    early = case.reader([first])
    assert isinstance(early, EndingReader)
    given = early.end_at(stored(first.end), NOW_MS, stored(first.end))
    hold(given == first.end, f"end_at was given {first.end!r} and gave back {given!r}")
    beyond = early.next(stored(first.end), case.limit, NOW_MS)
    hold(beyond is None, f"it was to end at {first.end!r}, and planned {beyond}")


@PLANNING.promise(
    "waiting-and-news",
    "waiting gives what is there and not planned; news gives texts, each of them once",
    "return hf.Waiting(files, bytes) without negative numbers; forget news once they were given",
)
def _waiting_and_news(case: SourceCase) -> None:
    reader = case.reader()
    if not isinstance(reader, WaitingReader | TellingReader):
        raise NotAsked("its reader has neither waiting nor news")
    reader.next(None, case.limit, NOW_MS)
    if isinstance(reader, WaitingReader):
        waiting: object = reader.waiting(None)
        fits = isinstance(waiting, Waiting) and waiting.files >= 0 and waiting.bytes >= 0
        hold(fits, f"waiting gave {waiting!r}")
    if isinstance(reader, TellingReader):
        news = list(reader.news())
        hold(all(isinstance(text, str) for text in news), f"news gave {news!r}")
        again = list(reader.news())
        hold(not again, f"asked again at once, news gave {again!r}")


@PLANNING.promise(
    "arrived",
    "arrived gives pieces of the slice, each with a share of 0 or more and times in order",
    "return hf.Arrived(share, first_ms, last_ms) for what is known, and nothing for what is not",
)
def _arrived(case: SourceCase) -> None:
    reader = case.reader()
    if not isinstance(reader, DatedReader):
        raise NotAsked("its reader has no arrived")
    for slice in case.plan(reader, case.limit):
        for piece in reader.arrived(slice):
            hold(piece.share >= 0 and piece.first_ms <= piece.last_ms, f"arrived gave {piece!r}")


@PLANNING.promise(
    "committed",
    "committed changes nothing of what is planned, in this run and in another",
    "tell monitors of the position, and keep nothing of it: what a run goes on from is what it is given",
)
def _committed(case: SourceCase) -> None:
    reader = case.reader()
    if not isinstance(reader, AcknowledgingReader):
        raise NotAsked("its reader has no committed")
    slices = case.plan(reader, case.limit)
    reader.committed(stored(slices[0].end))
    again, another = case.plan(reader, case.limit, slices[0].end), case.plan(case.reader(), case.limit)
    _hold_same(case, "this run", slices[1:], again)
    _hold_same(case, "another run", slices, another)


@PLANNING.promise(
    "released",
    "released lets go of nothing that comes after its position, whether or not the source was told to trim",
    "trim up to the position, and not beyond it; ask for this one alone where the source trims",
)
def _released(case: SourceCase) -> None:
    reader = case.reader()
    if not isinstance(reader, TrimmingReader):
        raise NotAsked("its reader has no released")
    first, *rest = case.plan(reader, case.limit)
    reader.released(stored(first.end))
    _hold_same(case, "this run", rest, case.plan(reader, case.limit, first.end))
    another = case.plan(case.reader([first]), case.limit, stored(first.end))
    _hold_same(case, "another run", rest, another)


def _hold_same(case: SourceCase, who: str, before: list[Slice], after: list[Slice]) -> None:
    wanted, got = case.rows_of(before), case.rows_of(after)
    hold(got == wanted, f"before it there were {wanted} rows, and {who} plans {got} after it")


@PLANNING.promise(
    "health",
    "health gives a short text, empty if all is well",
    "return '' or one line, and ask nobody for it: it is called all the time",
)
def _health(case: SourceCase) -> None:
    reader = case.reader()
    if not isinstance(reader, MonitoredReader):
        raise NotAsked("its reader has no health")
    reader.next(None, case.limit, NOW_MS)
    said: object = reader.health()
    hold(isinstance(said, str) and "\n" not in said, f"health gave {said!r}")
