"""What a sink promises that remembers what it has shown: `mark` and `begin`."""

from __future__ import annotations

from holdfast.connectors.contract import Mark
from holdfast.testing.conformance.promises import NotAsked, Suite, hold
from holdfast.testing.conformance.sink_case import SinkCase, failing_part

MARKS: Suite[SinkCase] = Suite()


@MARKS.promise(
    "mark-before-begin",
    "mark is None until begin was called for this job and uid, however often it is asked; then Mark(0)",
    "leave a durable trace in begin, and none in publisher or mark",
)
def _mark_before_begin(case: SinkCase) -> None:
    for _ in range(2):
        mark = case.remembering().mark()
        hold(mark is None, f"mark() is {mark} at a place where begin was never called")
    case.remembering().begin(0)
    mark = case.remembering().mark()
    hold(mark == Mark(0), f"mark() is {mark} after begin(0), asked by another run")


@MARKS.promise(
    "mark-follows",
    "mark names the newest epoch with rows that is shown, and the input of its parts, in every run",
    "write the mark in the same step that shows the rows; leave it where an epoch has no rows",
)
def _mark_follows(case: SinkCase) -> None:
    publisher = case.remembering()
    publisher.begin(0)
    publisher.publish(1, [case.part(0, 0, input="slices of 1")])
    publisher.publish(4, [case.part(0, 1, input="slices of 4"), case.part(1, 2, input="slices of 4")])
    publisher.publish(5, [])
    mark = case.remembering().mark()
    hold(mark == Mark(4, "slices of 4"), f"mark() is {mark} after epochs 1 and 4, and 5 without rows")
    try:
        publisher.publish(6, [failing_part(0, OSError("storage is away"))])
    except Exception:
        mark = case.remembering().mark()
        hold(mark == Mark(4, "slices of 4"), f"mark() is {mark} after epoch 6 could not be loaded")


@MARKS.promise(
    "mark-never-goes-back",
    "after begin(through) mark names no epoch before `through`, and begin never takes it back",
    "keep the greater one of `through` and what is marked already",
)
def _mark_never_goes_back(case: SinkCase) -> None:
    for through, least in ((5, 5), (3, 5)):
        case.remembering().begin(through)
        mark = case.remembering().mark()
        hold(mark is not None and mark.epoch >= least, f"mark() is {mark} after begin({through})")
    publisher = case.run()
    publisher.publish(6, [case.part(0, 0, input="i")])
    case.remembering().begin(0)
    mark = case.remembering().mark()
    hold(mark == Mark(6, "i"), f"mark() is {mark} after epoch 6 was shown and a run began with begin(0)")


@MARKS.promise(
    "taken-away",
    "rows that were taken away are not shown again",
    "recognise a shown epoch by the mark, not by its rows",
)
def _taken_away(case: SinkCase) -> None:
    if case.take_away is None:
        raise NotAsked("nothing was given that takes shown rows away; give take_away=")
    case.remembering()
    publisher = case.run()
    publisher.publish(1, [case.part(0, 0)])
    publisher.publish(2, [case.part(0, 1)])
    case.take_away(case.place)
    case.expect("after all rows were taken away")
    again = case.run()
    again.publish(2, [case.part(0, 1)])
    case.expect("after another run published epoch 2 again")
    again.publish(3, [case.part(0, 2)])
    case.expect("after its epoch 3", 2)
