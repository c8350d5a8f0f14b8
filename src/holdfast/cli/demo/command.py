"""`holdfast demo`: a job is killed with kill -9 again and again, and nothing is lost and nothing doubled.

The demo stands outside the job: it starts it as a process, watches only the files that appear in its sink, as
any reader would, and at the end compares them with what plain arithmetic says they must hold (see proof).
"""

from __future__ import annotations

import random
import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pyarrow.parquet as pq
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from holdfast.cli.demo.chart import Mark, Sample, picture
from holdfast.cli.demo.process import Child
from holdfast.cli.demo.proof import Verdict, prove, read_sink, visible_files
from holdfast.errors import DefinitionError, HoldfastError

JOB_FILE = Path(__file__).with_name("clickstream.py")
STREAM_SECONDS = 50.0
"""The events arrive over this long, whatever their number."""
STALLED_SECONDS = 120.0
"""A life of the job that shows nothing new for so long is given up."""
TICK_SECONDS = 0.1

_INTRODUCTION = """\
[bold]A stream of clicks[/bold]: {events:,} events of 5,000 users, {rate:,.0f} a second.
The job numbers each user's clicks and adds up what they spent; it remembers both as state, per user.
Every event becomes one row in the sink, with its number and the sum so far.

[bold]The job is killed {kills} times[/bold] with kill -9, at random moments (seed {seed}), and started again.
If state were lost, numbers would start again; if work were done twice, events would appear twice.
Everything is in {directory}
"""


class ProofFailed(HoldfastError):
    """The sink does not hold what it must."""


@dataclass(frozen=True)
class Kill:
    """`delay` seconds after this life of the job got so far: to its recovery, or to the first new rows in the
    sink."""

    after: Literal["recovery", "rows"]
    delay: float


def plan_kills(seed: int, count: int) -> list[Kill]:
    """Moments by chance: mostly while the job works, every third while it recovers from the kill before."""
    chance = random.Random(seed)
    kills = []
    for number in range(count):
        recovering = number % 3 == 2
        delay = chance.uniform(0.0, 1.0 if recovering else 5.0)
        kills.append(Kill("recovery" if recovering else "rows", delay))
    return kills


def play(console: Console, *, seed: int | None, kills: int, events: int, directory: Path | None) -> None:
    """The whole demo. Raises ProofFailed if the job did not keep its promise."""
    seed = random.SystemRandom().randrange(10_000) if seed is None else seed
    directory = _stage(directory)
    told = {
        "events": events,
        "rate": events / STREAM_SECONDS,
        "kills": kills,
        "seed": seed,
        "directory": directory,
    }
    console.print(_INTRODUCTION.format(**told), highlight=False, soft_wrap=True)
    show = _Show(console, directory, events)
    show.run(plan_kills(seed, kills))
    console.print("\nNow the proof: every row in the sink against plain arithmetic, without Holdfast.")
    verdict = prove(events, read_sink(directory / "out" / "clicks"), read_sink(directory / "out" / "pages"))
    console.print(_table(verdict), highlight=False)
    drawn = directory / "throughput.svg"
    subtitle = (
        f"{events:,} events; {len(show.marks)} kills; lost {verdict.lost:,}, doubled {verdict.doubled:,}"
    )
    drawn.write_text(picture(show.samples, show.marks, "A job killed with kill -9, and restarted", subtitle))
    console.print(f"A picture of it: {drawn}", highlight=False, soft_wrap=True)
    if not verdict.proven:
        raise ProofFailed(
            f"the sink is not what it must be (seed {seed}); the evidence is kept in {directory}"
        )
    console.print(
        f"[bold green]Nothing was lost and nothing was doubled[/bold green], over {len(show.marks)} kills.",
        highlight=False,
    )


def _stage(directory: Path | None) -> Path:
    if directory is None:
        directory = Path(tempfile.mkdtemp(prefix="holdfast-demo-"))
    directory.mkdir(parents=True, exist_ok=True)
    if any(directory.iterdir()):
        raise DefinitionError(f"{directory} is not empty; give the demo an empty or a new directory")
    shutil.copy(JOB_FILE, directory / JOB_FILE.name)
    return directory.resolve()


class _Show:
    """Lives of the job, one after another, and what was seen of them."""

    def __init__(self, console: Console, directory: Path, events: int) -> None:
        self._directory, self._events = directory, events
        self._began = time.monotonic()
        self._visible: dict[Path, int] = {}
        self.samples: list[Sample] = []
        self.marks: list[Mark] = []
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed:,.0f} of {task.total:,.0f} events in the sink"),
            TimeElapsedColumn(),
            console=console,
        )
        self._task = self._bar.add_task("starting", total=events)

    def run(self, kills: Sequence[Kill]) -> None:
        """One life for each kill, and a last one that may live. Ends early if a life gets to the end."""
        with self._bar:
            for number, kill in enumerate([*kills, None], start=1):
                if self._live(number, kill):
                    break

    def _live(self, number: int, kill: Kill | None) -> bool:
        """Whether the job came to its end, so that there is nothing left to kill."""
        settings = {"EVENTS": str(self._events), "EVENTS_PER_SECOND": str(self._events / STREAM_SECONDS)}
        child = Child(self._directory, number, settings)
        try:
            return self._watch(child, kill)
        finally:
            child.kill()

    def _watch(self, child: Child, kill: Kill | None) -> bool:
        """Until the job ends, or its time has come."""
        self._say(f"started as process {child.pid}")
        rows_before = self._rows
        moment: float | None = None
        news, news_at = (child.phase, self._rows), time.monotonic()
        while child.exit_code is None:
            time.sleep(TICK_SECONDS)
            self._look(child)
            now = time.monotonic()
            if news != (child.phase, self._rows):
                news, news_at = (child.phase, self._rows), now
            if kill is not None and moment is None:
                far = self._rows > rows_before if kill.after == "rows" else child.phase != "starting"
                moment = now + kill.delay if far else None
            if moment is not None and now >= moment:
                child.kill()
                self._killed(child)
                return False
            if now - news_at > STALLED_SECONDS:
                raise ProofFailed(f"the job stands still in phase {child.phase}; see {child.log}")
        self._look(child)
        if child.exit_code != 0:
            raise ProofFailed(f"the job ended by itself with code {child.exit_code}: {child.last_words()}")
        self._say("came to its end")
        return True

    @property
    def _rows(self) -> int:
        return self.samples[-1].rows if self.samples else 0

    def _look(self, child: Child) -> None:
        """Count the rows that are visible in the sink now."""
        for file in visible_files(self._directory / "out" / "clicks"):
            if file not in self._visible:
                self._visible[file] = pq.read_metadata(file).num_rows
        self.samples.append(Sample(time.monotonic() - self._began, sum(self._visible.values())))
        self._bar.update(self._task, description=f"{child.phase:<9}", completed=self._rows)

    def _killed(self, child: Child) -> None:
        self._look(child)
        self.marks.append(Mark(self.samples[-1].at, "kill -9"))
        doing = "recovering" if child.phase == "restoring" else f"at epoch {child.progress.get('epoch', 0)}"
        kill = f"[bold red]kill -9[/bold red] of process {child.pid}"
        self._say(f"{kill}, which was {doing}; {self._rows:,} events in the sink")

    def _say(self, text: str) -> None:
        seconds = time.monotonic() - self._began
        self._bar.console.print(f"{seconds:6.1f} s  {text}", highlight=False, soft_wrap=True)


def _table(verdict: Verdict) -> Table:
    table = Table(show_header=False)
    rows = [
        ("events generated", verdict.generated, False),
        ("events in the sink", verdict.counted, verdict.counted != verdict.generated),
        ("lost", verdict.lost, verdict.lost > 0),
        ("doubled", verdict.doubled, verdict.doubled > 0),
        ("never generated", verdict.unknown, verdict.unknown > 0),
        ("rows with a wrong number or sum", verdict.wrong, verdict.wrong > 0),
        (f"users of {verdict.users:,} with a gap or a repeat", verdict.gaps, verdict.gaps > 0),
        ("pages with a wrong final count or sum", verdict.wrong_pages, verdict.wrong_pages > 0),
    ]
    for name, number, bad in rows:
        table.add_row(name, f"[bold red]{number:,}[/bold red]" if bad else f"[green]{number:,}[/green]")
    table.columns[1].justify = "right"
    return table
