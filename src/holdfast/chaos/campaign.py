"""A campaign: the job once in peace, then round after round under the nemesis, and the verdict on them.

    DIRECTORY/reference/        the run without faults: checkpoint, recorded sinks, logs
    DIRECTORY/reference-again/  a second one, with epochs cut elsewhere and, where clocks jump, with a clock
                                that does; made only if something differs
    DIRECTORY/round-1/ ...      the runs under faults
    DIRECTORY/history.jsonl     what happened, DIRECTORY/timeline.svg as a picture
    DIRECTORY/report.json       verdict and figures

Always true: whatever was started is gone at the end; the seed is in the report.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from holdfast.chaos.checker import Finding, Left, Part, Verdict, compare, doubted, worst
from holdfast.chaos.evidence import read_left, rows_read
from holdfast.chaos.faults import CLOCK_JUMP_MAX_MS, DRIVER_STEPS, Kind, schedule
from holdfast.chaos.history import Event, Figures, History, bound, figures_of
from holdfast.chaos.nemesis import Nemesis
from holdfast.chaos.round import Round, Stage
from holdfast.chaos.shown_rows import SinkShape, Tally
from holdfast.chaos.spark_cluster import Cluster
from holdfast.chaos.timeline import timeline
from holdfast.errors import DefinitionError
from holdfast.steps import Step

REFERENCE_SECONDS_MIN = 180.0
"""What the run without faults is given at least to end."""
PEACE_SECONDS_MIN = 120.0
"""What a job is given at least to end, once the nemesis leaves it alone."""

Check = Callable[[Path, Path], list[str]]
"""The directories of the reference and of a round -> what is wrong, each in a sentence."""


@dataclass(frozen=True, kw_only=True)
class Wish:
    """How much of what. `faults` (None: no limit) and `seconds` end the injecting, whichever comes first."""

    seed: int
    seconds: float
    kinds: tuple[Kind, ...]
    steps: tuple[Step, ...] = DRIVER_STEPS
    """Those at which the driver is killed."""
    faults: int | None = None
    guarantee: str = "exactly-once"


@dataclass(frozen=True, kw_only=True)
class Report:
    """The outcome. `findings`: one for each round."""

    verdict: Verdict
    seed: int
    guarantee: str
    figures: Figures
    findings: tuple[Finding, ...]
    directory: Path

    @property
    def reasons(self) -> list[str]:
        return [
            f"round {number}, {reason}"
            for number, finding in enumerate(self.findings, start=1)
            for reason in finding.reasons
        ]

    def as_dict(self) -> dict[str, Any]:
        figures = asdict(self.figures)
        return {
            "verdict": str(self.verdict),
            "seed": self.seed,
            "guarantee": self.guarantee,
            "fault_count": self.figures.fault_count,
            "bound_95_per_round": bound(self.verdict, self.figures.rounds),
            **figures,
            "reasons": self.reasons[:20],
            "directory": str(self.directory),
        }


class Campaign:
    """Made for one job; `run` once."""

    def __init__(
        self,
        stage: Stage,
        sinks: list[SinkShape],
        wish: Wish,
        directory: Path,
        *,
        cluster: Cluster | None = None,
        check: Check | None = None,
        listener: Callable[[Event], None],
    ) -> None:
        self._stage, self._sinks, self._wish, self._directory = stage, sinks, wish, directory
        self._cluster, self._check = cluster, check
        self._history = History(file=directory / "history.jsonl", listener=listener)
        self._again: Left | None = None
        self._reference_seconds = 0.0
        self._epochs = self._rows = 0

    def run(self) -> Report:
        """All of it. Leaves history, picture and report in the directory."""
        reference = self._reference("reference", self._stage, 0)
        findings: list[Finding] = []
        if reference.ended:
            self._deadline = time.monotonic() + self._wish.seconds
            while not findings or not self._enough():
                findings.append(self._round(len(findings) + 1, reference))
        else:
            findings.append(compare(self._sinks, self._wish.guarantee, reference, reference))
        report = Report(
            verdict=worst(finding.verdict for finding in findings),
            seed=self._wish.seed,
            guarantee=self._wish.guarantee,
            figures=figures_of(
                self._history.events,
                epochs=self._epochs,
                source_rows=self._rows,
                tally=sum((finding.tally for finding in findings), Tally()),
            ),
            findings=tuple(findings),
            directory=self._directory,
        )
        self._write(report)
        return report

    def _reference(self, name: str, stage: Stage, number: int, jump_after: int | None = None) -> Left:
        """A run without faults. Rounds that are none have numbers below 1. `jump_after`: after so many
        commits its clock is ahead by as much as clocks ever jump."""
        directory, began = self._directory / name, time.monotonic()
        seconds = max(REFERENCE_SECONDS_MIN, self._wish.seconds)
        with Round(stage, directory, self._wish.seed, number, self._history) as round:
            if jump_after is not None and round.wait(lambda: round.newest >= jump_after, seconds):
                round.orders.shift_clock("ahead", CLOCK_JUMP_MAX_MS)
            round.wait(lambda: round.over, seconds)
        self._reference_seconds = time.monotonic() - began
        if round.failed and not round.stalled:
            raise DefinitionError(f"the job fails without any fault: {round.failed}; mend it first")
        _tidy(directory)
        return read_left(directory, self._sinks, ended=round.finished)

    def _round(self, number: int, reference: Left) -> Finding:
        directory = self._directory / f"round-{number}"
        seed = self._wish.seed * 1_000 + number
        with Round(self._stage, directory, seed, number, self._history) as round:
            faults = schedule(seed, self._wish.kinds, self._wish.steps)
            Nemesis(round, self._cluster).torment(faults, self._enough)
            round.wait(lambda: round.over, max(PEACE_SECONDS_MIN, 3 * self._reference_seconds))
        _tidy(directory)
        broken = "" if round.stalled or Kind.DAMAGE_FILE in self._wish.kinds else round.failed
        left = read_left(directory, self._sinks, ended=round.finished, broken=broken)
        self._epochs += left.last_epoch
        self._rows += rows_read(directory) if not left.unreadable else 0
        finding = self._judged(reference, left, directory)
        self._history.add("checker", f"round {number}: {finding.verdict}", "verdict", round=number)
        return finding

    def _judged(self, reference: Left, left: Left, directory: Path) -> Finding:
        finding = compare(self._sinks, self._wish.guarantee, reference, left)
        if any(part.verdict is Verdict.FALSE and not part.certain for part in finding.parts):
            if self._again is None:
                # Halfway, so that what is kept for an hour is there before it and is gone after it.
                jumps = reference.last_epoch // 2 if Kind.CLOCK_JUMP in self._wish.kinds else None
                self._again = self._reference("reference-again", _cut_elsewhere(self._stage), -1, jumps)
            again = compare(self._sinks, self._wish.guarantee, reference, self._again)
            finding = doubted(finding, again)
        if self._check is None:
            return finding
        problems = tuple(self._check(self._directory / "reference", directory))
        verdict = Verdict.FALSE if problems else Verdict.TRUE
        # Where the job gives other results each time, the user's own check decides.
        left_to_it = [part for part in finding.parts if part.verdict is Verdict.UNKNOWN and not part.certain]
        known = [part for part in finding.parts if part not in left_to_it]
        tally = sum((part.tally for part in left_to_it), Tally())
        return Finding((*known, Part("check", verdict, problems, tally, certain=True)))

    def _enough(self) -> bool:
        wanted = self._wish.faults
        return time.monotonic() >= self._deadline or (
            wanted is not None and len(self._history.of("fault")) >= wanted
        )

    def _write(self, report: Report) -> None:
        figures, tally = report.figures, report.figures.tally
        self._history.close()
        subtitle = (
            f"seed {report.seed}; {figures.fault_count} faults of {len(figures.faults)} kinds; "
            f"{figures.restarts} restarts; {tally.rows:,} rows shown: lost {tally.lost:,}, "
            f"doubled {tally.doubled:,}, changed {tally.changed:,}; verdict: {report.verdict}"
        )
        title = f"{self._directory.name}: a job under faults ({report.guarantee})"
        (self._directory / "timeline.svg").write_text(timeline(self._history.events, title, subtitle))
        (self._directory / "report.json").write_text(json.dumps(report.as_dict(), indent=2) + "\n")


def _cut_elsewhere(stage: Stage) -> Stage:
    """The same job with other epochs: what depends on where they are cut comes out differently."""
    limit = stage.settings.options.get("max_rows_per_epoch")
    options = {**stage.settings.options, "max_rows_per_epoch": max(1, limit * 2 // 3) if limit else 1_000}
    return replace(stage, settings=replace(stage.settings, options=options))


def _tidy(directory: Path) -> None:
    """Working state and Spark's own files say nothing afterwards, and are large."""
    for name in ("working", "spark"):
        shutil.rmtree(directory / name, ignore_errors=True)
