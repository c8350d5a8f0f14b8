"""The judge itself is judged: each kind of wrong is found, right is let pass, and doubt is called doubt."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.chaos.apps import Place, Shape
from tests.chaos.checker import Evidence, Finding, Row, State, Verdict, check, judge

SHAPE = Shape(epochs=4, rows=30, keys=5, buckets=3)


def right() -> Evidence:
    """What a run without faults leaves, written down row by row."""
    state: State = {}
    buckets: dict[int, tuple[int, int]] = {}
    ledger: dict[int, list[Row]] = {}
    shown: dict[int, list[Row]] = {}
    states: dict[int, tuple[int, State]] = {}
    for event in range(SHAPE.events):
        epoch = event // SHAPE.rows + 1
        key, bucket = SHAPE.key_of(event), event % SHAPE.buckets
        before = state.get(key, {"seq": 0, "total": 0, "mark": ""})
        after = {
            "seq": before["seq"] + 1,
            "total": before["total"] + SHAPE.value_of(event),
            "mark": f"m{event}",
        }
        state[key] = after
        row = {**after, "event": event, "key": key, "before": before["mark"], "bucket": bucket}
        ledger.setdefault(epoch, []).append(row)
        count, seqs = buckets.get(bucket, (0, 0))
        buckets[bucket] = (count + 1, seqs + after["seq"])
        shown[epoch] = [{"bucket": b, "rows": n, "seqs": s} for b, (n, s) in buckets.items()]
        states[epoch] = (epoch, copy.deepcopy(state))
    accumulators = {b: {"accumulator": {"rows": n, "seqs": s}} for b, (n, s) in buckets.items()}
    return Evidence(SHAPE.events, ledger, shown, states, accumulators)


def judged(doctor: Callable[[Evidence], None]) -> Finding:
    evidence = copy.deepcopy(right())
    doctor(evidence)
    return judge(evidence, SHAPE)


def test_a_run_without_faults_is_right() -> None:
    finding = judge(right(), SHAPE)
    assert finding.verdict is Verdict.TRUE, finding
    assert finding.rows == SHAPE.events


def _lose_a_row(evidence: Evidence) -> None:
    del evidence.ledger[2][7]


def _lose_the_last_row(evidence: Evidence) -> None:
    del evidence.ledger[4][-1]


def _lose_an_epoch(evidence: Evidence) -> None:
    del evidence.ledger[3], evidence.buckets[3]


def _double_a_row(evidence: Evidence) -> None:
    evidence.ledger[2].append(evidence.ledger[2][7])


def _double_an_epoch(evidence: Evidence) -> None:
    evidence.ledger[3] = evidence.ledger[3] * 2


def _take_effect_twice(evidence: Evidence) -> None:
    """The sink hides it, but a number was used up: the state counted an event twice."""
    for rows in evidence.ledger.values():
        for row in rows:
            if row["key"] == 0 and row["seq"] > 4:
                row["seq"] += 1


def _invent_a_row(evidence: Evidence) -> None:
    row = {**evidence.ledger[4][-1], "event": SHAPE.events + SHAPE.keys}
    evidence.ledger[4].append(row)


def _add_wrongly(evidence: Evidence) -> None:
    evidence.ledger[1][3]["total"] += 1


def _mix_results(evidence: Evidence) -> None:
    """The sink shows one attempt's rows, the state went on from another's."""
    evidence.ledger[2][7]["mark"] = "other"


def _change_final_state(evidence: Evidence) -> None:
    evidence.ledger_state[1]["total"] += 1


def _lose_state_of_a_key(evidence: Evidence) -> None:
    del evidence.ledger_state[1]


def _keep_another_mark(evidence: Evidence) -> None:
    evidence.ledger_state[1]["mark"] = "other"


def _change_an_older_commit(evidence: Evidence) -> None:
    evidence.ledger_states[2][1][1]["seq"] += 1


def _lose_a_bucket_row(evidence: Evidence) -> None:
    del evidence.buckets[2][0]


def _change_bucket_state(evidence: Evidence) -> None:
    evidence.bucket_state[0]["accumulator"]["rows"] += 1


@pytest.mark.parametrize(
    ("doctor", "reason"),
    [
        (_lose_a_row, "is lost"),
        (_lose_the_last_row, "is lost"),
        (_lose_an_epoch, "leaves a gap"),
        (_double_a_row, "2 times"),
        (_double_an_epoch, "repeats"),
        (_take_effect_twice, "leaves a gap"),
        (_invent_a_row, "was never generated"),
        (_add_wrongly, "sum"),
        (_mix_results, "found mark"),
        (_change_final_state, "state of key 1 is"),
        (_lose_state_of_a_key, "state of key 1 is"),
        (_keep_another_mark, "'other'"),
        (_change_an_older_commit, "commit 2: state of key 1"),
        (_lose_a_bucket_row, "epoch 2: buckets"),
        (_change_bucket_state, "state of bucket 0"),
    ],
)
def test_every_kind_of_wrong_is_found(doctor: Callable[[Evidence], None], reason: str) -> None:
    finding = judged(doctor)
    assert finding.verdict is Verdict.FALSE
    assert reason in str(finding), finding


def test_an_unfinished_run_is_neither_right_nor_wrong() -> None:
    evidence = replace(right(), committed_events=SHAPE.events - 1)
    del evidence.ledger[4]
    assert judge(evidence, SHAPE).verdict is Verdict.UNKNOWN


def test_an_unfinished_run_can_be_wrong_already() -> None:
    evidence = replace(right(), committed_events=SHAPE.events - 1)
    _double_an_epoch(evidence)
    assert judge(evidence, SHAPE).verdict is Verdict.FALSE


def test_nothing_at_all_proves_nothing(tmp_path: Path) -> None:
    assert check(Place(tmp_path), SHAPE).verdict is Verdict.UNKNOWN


def test_a_sink_can_be_wrong_whatever_the_checkpoint_holds(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.sink("ledger").mkdir(parents=True)
    rows = right().ledger[2]
    pq.write_table(pa.Table.from_pylist(rows), place.sink("ledger") / "ledger-out-000000000002.parquet")
    (place.checkpoint / "commits").mkdir(parents=True)
    (place.checkpoint / "commits" / "000000000001").write_bytes(b"no record")
    finding = check(place, SHAPE)
    assert finding.verdict is Verdict.FALSE
    assert "leaves a gap" in str(finding)


def test_what_cannot_be_read_proves_nothing(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.sink("ledger").mkdir(parents=True)
    (place.sink("ledger") / "ledger-out-000000000001.parquet").write_bytes(b"no parquet")
    finding = check(place, SHAPE)
    assert finding.verdict is Verdict.UNKNOWN
    assert "cannot be read" in str(finding)
