"""What every sink promises about showing epochs: whole, and (where it says so) once."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from functools import partial

import pyarrow as pa

from holdfast.connectors.contract import Publisher, Sink, StagedPart
from holdfast.testing.conformance.promises import Seen, Suite, hold
from holdfast.testing.conformance.sink_case import (
    JOB,
    UID,
    Died,
    SinkCase,
    failing_part,
    may_be_refused,
)

SHOWING: Suite[SinkCase] = Suite()

MEET_SECONDS = 1.0
"""How long one of two publishers waits for the other to load its rows too. Where a sink holds a lock while it
loads they never meet, and it goes on after this."""

_ONE_TRANSACTION = "write the epoch's number with its rows, in one transaction or one rename"


@SHOWING.promise(
    "sink",
    "a sink has exactly_once and publisher; its publisher has published_through, publish and close",
    "write what is missing; `exactly_once` is True or False",
)
def _is_a_sink(case: SinkCase) -> None:
    sink = case.sink
    hold(isinstance(sink, Sink), f"{type(sink).__name__} lacks one of exactly_once, publisher")
    hold(isinstance(sink.exactly_once, bool), f"exactly_once is {sink.exactly_once!r}")
    publisher = sink.publisher(JOB, UID)
    missing = [name for name in ("published_through", "publish", "close") if not hasattr(publisher, name)]
    hold(not missing, f"the publisher {type(publisher).__name__} lacks {', '.join(missing)}")


@SHOWING.promise(
    "shown-whole",
    "when publish returns, all rows of all parts are shown, after those of earlier epochs",
    "load and write every part before publish returns",
)
def _shown_whole(case: SinkCase) -> None:
    publisher = case.run()
    publisher.publish(1, [case.part(0, 0), case.part(1, 1, 2)])
    case.expect("after epoch 1 in two parts", 0, 1, 2)
    publisher.publish(12, [case.part(0, 3)])
    case.expect("after epoch 12, the next one that there was", 0, 1, 2, 3)


@SHOWING.promise(
    "empty-epochs",
    "an epoch without parts, or with parts of no rows, shows nothing and is no error",
    "pass over parts without rows, and return where none is left",
)
def _empty_epochs(case: SinkCase) -> None:
    publisher = case.run()
    publisher.publish(1, [])
    publisher.publish(2, [case.part(0)])
    case.expect("after two epochs without rows")
    publisher.publish(3, [case.part(0), case.part(1, 0)])
    case.expect("after a third one with one row", 0)


@SHOWING.promise(
    "all-or-nothing",
    "an epoch whose parts cannot all be loaded is not shown at all, and can be published afterwards",
    "load everything before anything is shown, or show it in one transaction",
)
def _all_or_nothing(case: SinkCase) -> None:
    publisher = case.run()
    away = OSError("storage is away")
    try:
        publisher.publish(1, [case.part(0, 0), failing_part(1, away)])
    except Exception as error:
        causes = [error, error.__cause__, error.__context__]
        hold(away in causes, f"the second part failed with {away!r}, and publish raised {error!r}")
    else:
        raise Seen("the second part failed to load, and publish returned")
    case.expect("after an epoch of which only the first part could be loaded")
    publisher.publish(1, [case.part(0, 0), case.part(1, 1)])
    case.expect("after it was published once more, whole", 0, 1)


@SHOWING.promise(
    "close",
    "close shows nothing and takes nothing away; another run goes on",
    "only let go of connections and files",
)
def _close(case: SinkCase) -> None:
    case.run().close()
    case.expect("after a run that published nothing")
    publisher = case.run()
    publisher.publish(1, [case.part(0, 0)])
    publisher.close()
    case.expect("after the end of a run", 0)
    case.run().publish(2, [case.part(0, 1)])
    case.expect("after the next run", 0, 1)


@SHOWING.promise(
    "published-through",
    "published_through is never higher than the newest epoch that is shown; 0 where it cannot say",
    "count an epoch only with its rows, for this job and uid alone; or return 0",
)
def _published_through(case: SinkCase) -> None:
    _hold_through(case.sink.publisher(JOB, UID), 0, "before anything was published")
    publisher = case.run()
    publisher.publish(1, [case.part(0, 0)])
    _hold_through(publisher, 1, "after epoch 1")
    case.run("out-2").publish(7, [case.part(0, 1)])
    _hold_through(case.sink.publisher(JOB, UID), 1, "after epoch 7 of the sink 'out-2'")
    try:
        publisher.publish(2, [failing_part(0, OSError("storage is away"))])
    except Exception:
        _hold_through(case.sink.publisher(JOB, UID), 1, "after epoch 2 could not be loaded")


def _hold_through(publisher: Publisher, newest: int, when: str) -> None:
    through = publisher.published_through()
    hold(0 <= through <= newest, f"published_through() is {through!r} {when}, the newest shown is {newest}")


@SHOWING.promise(
    "uids-apart",
    "what one sink of a job has shown says nothing of another one",
    "keep what was shown by job and uid, the whole of it: 'out' and 'out-2' begin alike",
)
def _uids_apart(case: SinkCase) -> None:
    case.run("out-2").publish(3, [case.part(0, 0)])
    case.run("out").publish(3, [case.part(0, 1)])
    case.expect("after epoch 3 of 'out-2' and epoch 3 of 'out'", 0, 1)


@SHOWING.promise(
    "again-shows-once",
    "publishing an epoch again changes nothing",
    f"{_ONE_TRANSACTION}; if epochs cannot be recognised, say exactly_once = False",
)
def _again_shows_once(case: SinkCase) -> None:
    case.needs_exactly_once()
    publisher = case.run()
    epochs = {1: [case.part(0, 0), case.part(1, 1)], 12: [case.part(0, 2)]}
    for epoch, parts in (*epochs.items(), *epochs.items()):
        publisher.publish(epoch, parts)
    case.expect("after epochs 1 and 12, each published twice", 0, 1, 2)


@SHOWING.promise(
    "again-in-another-run",
    "an epoch that was shown is not shown again by the run after a crash",
    f"{_ONE_TRANSACTION}: what only the publisher remembers is lost with it",
)
def _again_in_another_run(case: SinkCase) -> None:
    case.needs_exactly_once()
    first = case.run()
    first.publish(1, [case.part(0, 0)])
    first.publish(2, [case.part(0, 1)])
    second = case.run()
    second.publish(2, [case.part(0, 1)])
    case.expect("after epoch 2 was published by the run that crashed and by the next", 0, 1)
    second.publish(3, [case.part(0, 2)])
    case.expect("after that run's epoch 3", 0, 1, 2)


@SHOWING.promise(
    "crash-while-publishing",
    "an epoch whose publisher died on the way is shown by the next run, once and whole",
    f"{_ONE_TRANSACTION}; count it as shown only then",
)
def _crash_while_publishing(case: SinkCase) -> None:
    case.needs_exactly_once()
    publisher = case.run()
    publisher.publish(1, [case.part(0, 0)])
    try:
        publisher.publish(2, [case.part(0, 1), failing_part(1, Died())])
    except Died:
        pass
    else:
        raise Seen("the process died while a part was loaded, and publish took no notice")
    case.run().publish(2, [case.part(0, 1), case.part(1, 2)])
    case.expect("after the next run published the epoch", 0, 1, 2)


@SHOWING.promise(
    "zombie",
    "a publisher that was paused and replaced shows nothing again when it wakes up",
    "ask the place itself, in the transaction that writes, whether the epoch is shown; not what the "
    "publisher knew when it was opened",
)
def _zombie(case: SinkCase) -> None:
    case.needs_exactly_once()
    zombie = case.run()
    zombie.publish(1, [case.part(0, 0)])
    leader = case.run()
    leader.publish(2, [case.part(0, 1)])
    leader.publish(3, [case.part(0, 2)])
    may_be_refused(partial(zombie.publish, 2, [case.part(0, 1)]))
    case.expect("after epoch 2 was published late by the run that had been replaced", 0, 1, 2)
    leader.publish(4, [case.part(0, 3)])
    case.expect("after epoch 4 of the run that replaced it", 0, 1, 2, 3)


@SHOWING.promise(
    "two-at-once",
    "an epoch that two publishers show at the same moment is shown once",
    "let the place decide between them: a unique key, create-if-absent, a lock that is held while writing",
)
def _two_at_once(case: SinkCase) -> None:
    case.needs_exactly_once()
    both = threading.Barrier(2)
    table = case.part(0, 0, 1).load()

    def load() -> pa.Table:
        with contextlib.suppress(threading.BrokenBarrierError):
            both.wait(MEET_SECONDS)
        return table

    part = StagedPart(0, table.num_rows, load)
    publishers = [case.run(), case.run()]
    failures = _in_threads([partial(each.publish, 1, [part]) for each in publishers], both.abort)
    hold(not failures, f"one of them failed: {'; '.join(map(repr, failures))}")
    case.expect("after both", 0, 1)


def _in_threads(calls: list[Callable[[], None]], ended: Callable[[], None]) -> list[Exception]:
    """Run all at once, and say when one of them has ended; what they raised, but for refusals."""
    failures: list[Exception] = []

    def run(call: Callable[[], None]) -> None:
        try:
            may_be_refused(call)
        except Exception as error:
            failures.append(error)
        finally:
            ended()

    threads = [threading.Thread(target=run, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return failures
