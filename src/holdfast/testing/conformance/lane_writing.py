"""What every lane sink promises: marks, and rows that are shown once whoever writes them."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

from holdfast.connectors.lane_publisher import AGAIN, DONE
from holdfast.connectors.lanes import LANES, LaneMark, LaneRows, LaneSink, Outcome, Result
from holdfast.testing.conformance.lane_case import LaneCase, expect
from holdfast.testing.conformance.promises import NotAsked, Seen, Suite, hold

WRITING: Suite[LaneCase] = Suite()
TWINS = 4
TOGETHER_SECONDS = 10


@WRITING.promise(
    "lane-sink",
    "a lane sink has exactly_once, publisher, atomic, shared and lane_writer; its writer opens to begin, "
    "marks, write and close",
    'write what is missing; atomic is "epoch", "lane" or "chunk", shared is True or False',
)
def _is_a_lane_sink(case: LaneCase) -> None:
    sink = case.sink
    hold(isinstance(sink, LaneSink), f"{type(sink).__name__} lacks one of these")
    hold(sink.atomic in ("epoch", "lane", "chunk"), f"atomic is {sink.atomic!r}")
    hold(isinstance(sink.shared, bool), f"shared is {sink.shared!r}")
    with case.open() as lanes:
        missing = [name for name in ("begin", "marks", "write", "close") if not hasattr(lanes, name)]
    hold(not missing, f"{type(lanes).__name__} lacks {', '.join(missing)}")


@WRITING.promise(
    "plain-value",
    "a writer is a plain value: pickled, it is equal to what it was, and opens the same lanes",
    "keep only texts and numbers in the writer, as a frozen dataclass does; connect in open",
)
def _plain_value(case: LaneCase) -> None:
    case.begun(3)
    writer = case.writer()
    there = pickle.loads(pickle.dumps(writer))
    hold(there == writer, f"{writer!r} comes back as {there!r}")
    lanes = there.open(1)
    try:
        marks = dict(lanes.marks())
    finally:
        lanes.close()
    hold(marks == dict(case.marks()), f"opened elsewhere it has the marks {marks}")


@WRITING.promise(
    "begin-makes-marks",
    "there is no mark until begin, which makes one for every lane of this job and uid, and changes none that "
    "is there",
    "insert the marks of lanes 0 to LANES - 1 where they are not; never overwrite",
)
def _begin_makes_marks(case: LaneCase) -> None:
    marks = case.marks()
    hold(not marks, f"before begin the marks are {marks}")
    case.begun(3)
    marks = case.marks()
    hold(marks == {lane: LaneMark(3) for lane in range(LANES)}, f"after begin(3) the marks are {marks}")
    other = case.marks("out-2")
    hold(not other, f"begin of the sink 'out' has made marks of the sink 'out-2': {other}")
    case.written(case.rows(4, 0, lane=1))
    case.begun(9)
    marks = case.marks()
    again = {lane: LaneMark(4, 1) if lane == 1 else LaneMark(3) for lane in range(LANES)}
    hold(marks == again, f"after begin(9) in another run the marks are {marks}")


@WRITING.promise(
    "mark-moves-with-rows",
    "rows that are written are shown, and the mark of their lane, and of no other, is at their end, with "
    "their input",
    "move the mark to rows.end in the same step that shows the rows",
)
def _mark_moves_with_rows(case: LaneCase) -> None:
    case.begun()
    case.written(case.rows(2, 0, 1, lane=5, input="slices of 2"))
    case.expect("after epoch 2 of lane 5", 0, 1)
    case.expect_mark("after epoch 2 of lane 5", LaneMark(2, 2, "slices of 2"), lane=5)
    case.expect_mark("after epoch 2 of lane 5", LaneMark(0), lane=4)
    case.written(case.rows(7, 2, lane=5, before=LaneMark(2, 2), input="slices of 7"))
    case.written(case.rows(7, 3, lane=4, input="slices of 7"))
    case.expect("after epoch 7 of lanes 4 and 5", 0, 1, 2, 3)
    case.expect_mark("after epoch 7", LaneMark(7, 1, "slices of 7"), lane=5)


@WRITING.promise(
    "again-changes-nothing",
    "rows that are written again are already there: also after their answer was lost",
    "compare with the mark inside the transaction (holdfast.connectors.continues)",
)
def _again_changes_nothing(case: LaneCase) -> None:
    case.begun()
    case.written(case.rows(1, 0, 1))
    for _ in range(2):
        expect(case.write(case.rows(1, 0, 1)), Outcome.ALREADY, "written again")
    case.expect("after epoch 1 was written three times", 0, 1)
    case.expect_mark("after epoch 1 was written three times", LaneMark(1, 2))


@WRITING.promise(
    "twins-at-once",
    "rows that several writers write at the same moment are shown once",
    "let the sink check the mark and write in one atomic step: a transaction that locks the mark, a script",
)
def _twins_at_once(case: LaneCase) -> None:
    case.begun()
    together = Barrier(TWINS)

    def twin(number: int) -> Result:
        waits = iter([together.wait])
        # Tried again, it waits for nobody.
        return case.write(case.rows(1, 0, 1, hook=lambda: next(waits, lambda seconds: 0)(TOGETHER_SECONDS)))

    with ThreadPoolExecutor(TWINS) as pool:
        results = list(pool.map(twin, range(TWINS)))
    case.expect(f"after {TWINS} writers at once ({_outcomes(results)})", 0, 1)
    allowed = DONE if case.sink.shared else DONE | AGAIN
    hold(all(result.outcome in allowed for result in results), f"they ended with {_outcomes(results)}")
    case.expect_mark(f"after {TWINS} writers at once", LaneMark(1, 2))


@WRITING.promise(
    "late-twin",
    "a writer that wakes up late changes nothing, and nothing that it holds keeps others from writing",
    "load the rows before anything is locked, and check the mark afterwards, inside the transaction",
)
def _late_twin(case: LaneCase) -> None:
    case.begun()
    overtaken: list[Result] = []

    def overtake() -> None:
        if not overtaken:
            overtaken.append(case.write(case.rows(1, 0, 1)))
            overtaken.append(case.write(case.rows(2, 2, before=LaneMark(1, 2))))

    with case.open() as late:
        result = late.write(case.rows(1, 0, 1, hook=overtake))
        held = [each.outcome for each in overtaken if each.outcome not in DONE]
        hold(not held, f"while one writer loads its rows, another one gets {overtaken}")
        again = late.write(case.rows(1, 0, 1))
    for each in (result, again):
        hold(each.outcome in AGAIN | {Outcome.ALREADY}, f"woken up late, a writer gets {each}")
    case.expect("after a writer of epoch 1 woke up in epoch 2", 0, 1, 2)
    case.expect_mark("after a writer of epoch 1 woke up in epoch 2", LaneMark(2, 1))


@WRITING.promise(
    "went-back",
    "rows are refused where the mark is lower than what the rows before them left",
    "give Result(Outcome.WENT_BACK, mark) where the mark is below rows.before",
)
def _went_back(case: LaneCase) -> None:
    case.begun()
    case.written(case.rows(1, 0))
    for before in (LaneMark(1, 2), LaneMark(3, 1)):
        result = case.write(case.rows(4, 1, before=before))
        expect(result, Outcome.WENT_BACK, f"the mark is LaneMark(1, 1), and the rows follow {before}")
    case.expect("after rows that do not follow the mark", 0)
    case.expect_mark("after rows that do not follow the mark", LaneMark(1, 1))


@WRITING.promise(
    "absence-is-loss",
    "where a lane has no mark nothing is written: it is lost, not new",
    "give Result(Outcome.WENT_BACK) where no mark is found; only begin makes marks",
)
def _absence_is_loss(case: LaneCase) -> None:
    expect(case.write(case.rows(1, 0)), Outcome.WENT_BACK, "written where begin was never called")
    case.expect("written where begin was never called")
    marks = case.marks()
    hold(not marks, f"written where begin was never called, the marks are {marks}")


@WRITING.promise(
    "other-rows",
    "other rows of an epoch that is shown (another input) are not taken for it",
    "keep rows.input with the mark, and give Result(Outcome.OTHER_ROWS, mark) where it is another one",
)
def _other_rows(case: LaneCase) -> None:
    case.begun()
    case.written(case.rows(1, 0, 1, input="a"))
    result = case.write(case.rows(1, 2, 3, input="b"))
    mark = result.mark
    told = result.outcome is Outcome.ALREADY and mark is not None and mark.input == "a"
    if not told:
        expect(result, Outcome.OTHER_ROWS, "epoch 1 was written with another input")
    case.expect("after epoch 1 with two inputs", 0, 1)


@WRITING.promise(
    "half-of-a-lane",
    "rows that cannot be loaded leave nothing (atomic = lane), or a prefix that the mark knows (chunk); the "
    "rest follows once",
    "load all rows before the transaction, or move the mark with every chunk in the step that shows it",
)
def _half_of_a_lane(case: LaneCase) -> None:
    case.begun()
    rows = (0, 1, 2)
    with case.open() as lanes:
        try:
            result: object = lanes.write(case.rows(1, *rows, fails_at=2))
        except OSError:
            result = None
    hold(result is None, f"rows could not be loaded, and write answered {result}")
    shown = len(list(case.read_rows(case.place)))
    mark = case.marks()[0]
    done = mark.rows if mark.epoch == 1 else 0
    hold(shown == done, f"{shown} rows are shown of a lane that could not be loaded, and its mark is {mark}")
    if case.sink.atomic != "chunk":
        hold(not shown, f"{shown} rows are shown of a lane that could not be loaded, with atomic = lane")
    case.written(case.rows(1, *rows))
    case.expect("after the rows could be loaded", *rows)
    case.expect_mark("after the rows could be loaded", LaneMark(1, 3))


@WRITING.promise(
    "disturbed",
    "a sink that cannot be reached, or whose answer is lost, is a result; written again, the rows are shown "
    "once",
    "give Result(Outcome.UNAVAILABLE, reason=...) for every error of the connection",
)
def _disturbed(case: LaneCase) -> None:
    if case.disturbed is None:
        raise NotAsked("nothing was given that disturbs the connection; give disturbed=")
    case.begun()
    rows = case.rows(1, 0, 1)
    with case.open() as lanes, case.disturbed(case.place):
        result = _answered(lanes.write, rows)
    hold(result.outcome in DONE | AGAIN, f"disturbed, write gives {result}")
    again = case.write(rows)
    hold(again.outcome in DONE, f"undisturbed again, write gives {again}")
    case.expect("after a disturbance", 0, 1)
    case.expect_mark("after a disturbance", LaneMark(1, 2))


@WRITING.promise(
    "refused-rows",
    "rows that the sink can never take are REFUSED, with the reason, or put aside and counted (rejected)",
    "tell what the server refuses for good from an outage; move the mark past rows that are put aside",
)
def _refused_rows(case: LaneCase) -> None:
    if case.refused is None:
        raise NotAsked("no rows were given that it refuses; give refused=")
    bad = LaneCase(case.make, case.read_rows, case.refused, None, None, case.place).begun()
    result = _answered(bad.write, bad.rows(1, *range(case.refused.num_rows)))
    if result.outcome is Outcome.WRITTEN:
        hold(result.rejected > 0, f"rows that it refuses were written: {result}")
        case.expect_mark("after rows that were put aside", LaneMark(1, case.refused.num_rows))
    else:
        expect(result, Outcome.REFUSED, "rows that it refuses")
        hold(result.reason, "rows were refused without a reason")


def _answered(write: Callable[[LaneRows], Result], rows: LaneRows) -> Result:
    try:
        return write(rows)
    except Exception as error:
        raise Seen(f"write raises {type(error).__name__}: {error}") from error


def _outcomes(results: list[Result]) -> str:
    return ", ".join(result.outcome.name for result in results)
