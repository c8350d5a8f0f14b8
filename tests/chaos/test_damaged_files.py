"""A file of a stopped job is cut or loses a bit; the job is started again.

Either it is repaired (another way to the same result is taken, and said) or it is refused in one line that
names the file. Never silence, never a wrong result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.chaos.inside.child import tightened
from holdfast.runtime.epoch import snapshotter
from tests.chaos import victims
from tests.chaos.apps import LEDGER, Place, Shape
from tests.chaos.checker import Verdict, check, sink_rows
from tests.chaos.inprocess import Ending, Template, make_template, run_here
from tests.chaos.victims import Victim

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SHAPE = Shape(epochs=12)
LARGE = Shape(epochs=11, pad=4_000)
"""Rows so wide that every shard's delta and output is a file of its own."""


class Outcome(StrEnum):
    REPAIRED = "repaired"
    REFUSED = "refused"
    UNREAD = "unread"
    """The result is right and nothing was said, because nobody reads the content: the name says it all."""


class Damage(StrEnum):
    FLIP = "flip"
    TRUNCATE = "truncate"
    DELETE = "delete"

    def do(self, victim: Victim) -> None:
        {"flip": victim.flip, "truncate": victim.truncate, "delete": victim.delete}[self]()


EXPECTED = {
    "newest-commit": {Outcome.REPAIRED},
    "older-commit": {Outcome.REPAIRED},
    "manifest": {Outcome.REPAIRED},
    "next-plan": {Outcome.REPAIRED},
    "newest-delta": {Outcome.REPAIRED},
    "older-delta": {Outcome.REPAIRED},
    "newest-snapshot": {Outcome.REPAIRED},
    "staged-output": {Outcome.REPAIRED},
    "job": {Outcome.REFUSED},
    "term": {Outcome.UNREAD},
    "floor": {Outcome.UNREAD},
}
LIGHT = {"newest-commit", "newest-delta", "job"}


CASES = [
    pytest.param(
        kind,
        damage,
        marks=() if kind in LIGHT and damage is Damage.FLIP else (pytest.mark.heavy,),
        id=f"{kind}-{damage}",
    )
    for kind in victims.KINDS
    for damage in (Damage.FLIP, Damage.TRUNCATE)
]


@pytest.fixture(scope="module", autouse=True)
def _often() -> Iterator[None]:
    """Manifests, sweeps and snapshots every few epochs."""
    with tightened():
        yield


@pytest.fixture(scope="module")
def stopped(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Template:
    return make_template(spark, tmp_path_factory.mktemp("stopped"), SHAPE)


@pytest.fixture(scope="module")
def stopped_without_snapshots(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Template:
    """Every delta is needed; elsewhere a snapshot may have replaced an older one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(snapshotter, "DELTAS_MIN", SHAPE.epochs + 1)
        return make_template(spark, tmp_path_factory.mktemp("without-snapshots"), SHAPE)


@pytest.fixture(scope="module")
def stopped_large(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Template:
    return make_template(spark, tmp_path_factory.mktemp("large"), LARGE)


def outcome_of(ending: Ending, victim: Victim, place: Place, shape: Shape) -> Outcome:
    """What became of it; fails if that is none of the allowed ways."""
    if ending.error is not None:
        assert victim.name in ending.refusal, ending.refusal
        return Outcome.REFUSED
    finding = check(place, shape)
    assert finding.verdict is Verdict.TRUE, f"{ending}\n{finding}"
    named = any(victim.name in line for line in ending.said)
    return Outcome.REPAIRED if named else Outcome.UNREAD


@pytest.mark.parametrize(("kind", "damage"), CASES)
def test_a_damaged_file_is_repaired_or_refused_never_passed_over(
    kind: str, damage: Damage, spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    template = "stopped_without_snapshots" if kind == "older-delta" else "stopped"
    place: Place = request.getfixturevalue(template).copy(tmp_path)
    before = sink_rows(place, LEDGER)
    victim = victims.KINDS[kind](place)
    damage.do(victim)
    ending = run_here(spark, place, SHAPE)
    assert outcome_of(ending, victim, place, SHAPE) in EXPECTED[kind], str(ending)
    after = sink_rows(place, LEDGER)
    assert {epoch: after[epoch] for epoch in before} == before, "what was shown has changed"


@pytest.mark.heavy
@pytest.mark.parametrize("kind", ["newest-commit", "newest-delta", "newest-snapshot", "manifest", "job"])
def test_a_lost_file_is_repaired_or_refused(
    kind: str, stopped: Template, spark: SparkSession, tmp_path: Path
) -> None:
    """A newest commit that is gone whole leaves no trace: it is as if the driver had died before it."""
    place = stopped.copy(tmp_path)
    victim = victims.KINDS[kind](place)
    victim.delete()
    outcome = outcome_of(run_here(spark, place, SHAPE), victim, place, SHAPE)
    assert outcome in (EXPECTED[kind] if kind != "newest-commit" else {Outcome.UNREAD})


@pytest.mark.heavy
@pytest.mark.parametrize("damage", [Damage.FLIP, Damage.TRUNCATE])
@pytest.mark.parametrize("find", [victims.newest_delta, victims.staged_output])
def test_a_damaged_file_of_one_shard_is_repaired(
    find: Callable[[Place], Victim],
    damage: Damage,
    stopped_large: Template,
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    place = stopped_large.copy(tmp_path)
    victim = find(place)
    assert "bundle" not in victim.name, "it shares its file with others"
    damage.do(victim)
    assert outcome_of(run_here(spark, place, LARGE), victim, place, LARGE) is Outcome.REPAIRED


@pytest.mark.heavy
def test_when_nothing_verifies_the_job_is_refused_and_nothing_is_shown(
    stopped: Template, spark: SparkSession, tmp_path: Path
) -> None:
    """Every delta and every snapshot is gone: no checkpoint can be restored, and none is taken for empty."""
    place = stopped.copy(tmp_path)
    before = sink_rows(place, LEDGER)
    for path in [*place.checkpoint.glob("data/*/*"), *place.checkpoint.glob("snapshots/*/*")]:
        path.write_bytes(b"")
    ending = run_here(spark, place, SHAPE)
    assert "no retained checkpoint verifies" in ending.refusal
    assert sink_rows(place, LEDGER) == before


@pytest.mark.heavy
def test_a_damaged_pin_holds_retention_back_and_says_so(
    stopped: Template, spark: SparkSession, tmp_path: Path
) -> None:
    place = stopped.copy(tmp_path)
    (place.checkpoint / "pins").mkdir()
    (place.checkpoint / "pins" / "reader").write_bytes(b"holdfast pin 1 damaged")
    oldest = min((place.checkpoint / "commits").iterdir())
    ending = run_here(spark, place, SHAPE)
    assert any("pins/reader" in line for line in ending.said), str(ending)
    assert oldest.exists(), "what the pin may protect was deleted"
    assert check(place, SHAPE).verdict is Verdict.TRUE
