"""A job whose sinks and transforms change from one life to the next, and what each sink must show.

    numbers -> [transforms] -> count (a number per row, kept in the operator's list)

A sink hangs at the source, at a transform or at the operator; wherever that is, it is given every number of
every epoch that is committed while the job has it. Which epochs those are is learnt from the commit records;
what is shown is read from the files of the sinks, and from where a consumer took them.
"""

from __future__ import annotations

import contextlib
import json
import random
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

import holdfast as hf
from holdfast.checkpoint.chain.history import History
from holdfast.checkpoint.store.records import CommitRecord
from holdfast.connectors.contract import Slice
from holdfast.errors import CorruptionError
from holdfast.storage.local_directory import LocalStorage

JOB, SOURCE, OPERATOR = "edges", "numbers", "count"
MAIN = "main"
"""The sink that the job always has."""
OTHERS = ("left", "right", "extra")
PLACES = ("source", "plain", "stored", "count")
"""Where a sink may hang: the source, a transform, one with `materialize`, the operator."""
STAYING = ("add", "add", "move", "swap", "reorder", "feed")
"""Changes after which every sink is still there, and where it was. While commits are lost that sinks have
shown, the sinks alone know of them: a job that is started without these sinks has no way to tell."""
CHANGES = (*STAYING, "remove", "remove", "replace", "replace", "elsewhere", "elsewhere")


class Numbers:
    """The numbers from 0 to below `limit`, which is no part of the job: it grows from life to life."""

    replayable = True
    schema = "id long"

    def __init__(self, limit: int) -> None:
        self._limit = limit

    def reader(self, notes: Sequence[Any]) -> NumbersReader:
        return NumbersReader(self._limit)


class NumbersReader:
    """A position is the next number."""

    def __init__(self, limit: int) -> None:
        self._limit = limit

    def next(self, after: Any, max_rows: int | None, now_ms: int) -> Slice | None:
        first = after or 0
        end = min(self._limit, first + (max_rows or self._limit))
        return Slice(after, end, rows=end - first) if end > first else None

    def exhausted(self, after: Any) -> bool:
        return (after or 0) >= self._limit

    def frame(self, spark: Any, slice: Slice) -> Any:
        return spark.range(slice.start or 0, slice.end, 1, 1)

    def lag(self, after: Any) -> int | None:
        return self._limit - (after or 0)


class Count(hf.OperatorFunction):
    """Numbers the rows from 1: with one shard and a state that is right, the row of `id` in an epoch gets a
    number of that epoch's own."""

    output = "id long, seq long"
    seen = hf.ListState("long")

    def process(self, row: Any, ctx: Any) -> Iterator[tuple[int, int]]:
        before = next(iter(self.seen), 0)
        self.seen.clear()
        self.seen.append(before + 1)
        yield row.id, before + 1


def as_it_is(frame: Any) -> Any:
    return frame


@dataclass(frozen=True)
class SinkAt:
    uid: str
    at: str
    directory: str


@dataclass(frozen=True)
class Layout:
    """What the job looks like: where its sinks hang, in the order of declaration, and what the operator
    reads."""

    sinks: tuple[SinkAt, ...] = (SinkAt(MAIN, "count", MAIN),)
    reads: str = "source"

    def declare(self, outputs: Path, limit: int, *, fsync: str = "off") -> hf.Job:
        job = hf.Job(JOB)
        source = job.source(Numbers(limit), uid=SOURCE)
        streams: dict[str, Any] = {"source": source}
        wanted = {self.reads, *(sink.at for sink in self.sinks)}
        if "plain" in wanted:
            streams["plain"] = source.transform(as_it_is)
        if "stored" in wanted:
            streams["stored"] = source.transform(as_it_is, materialize=True)
        streams["count"] = streams[self.reads].process(Count(), uid=OPERATOR)
        for sink in self.sinks:
            where = outputs / sink.directory
            url = f"file://{where}?fsync=off" if fsync == "off" else str(where)
            streams[sink.at].sink(hf.FileSink(url, format="parquet"), uid=sink.uid)
        return job

    def changed(self, chance: random.Random, kinds: tuple[str, ...]) -> tuple[Layout, str]:
        """Another layout, by one of these kinds of change, and what was done."""
        done: tuple[Layout, str] | None = getattr(self, f"_{chance.choice(kinds)}")(chance)
        return done or self.changed(chance, kinds)

    def _add(self, chance: random.Random) -> tuple[Layout, str] | None:
        free = [uid for uid in OTHERS if uid not in self.uids]
        if not free:
            return None
        uid = chance.choice(free)
        new = SinkAt(uid, chance.choice(PLACES), chance.choice(("shared", _new_directory(uid, chance))))
        at = chance.randrange(len(self.sinks) + 1)
        return replace(self, sinks=(*self.sinks[:at], new, *self.sinks[at:])), f"add {new}"

    def _remove(self, chance: random.Random) -> tuple[Layout, str] | None:
        others = [sink for sink in self.sinks if sink.uid != MAIN]
        if not others:
            return None
        gone = chance.choice(others)
        return replace(self, sinks=tuple(sink for sink in self.sinks if sink != gone)), f"remove {gone.uid}"

    def _replace(self, chance: random.Random) -> tuple[Layout, str] | None:
        """Another uid at the place of a sink: its stream may keep its name."""
        removed, added = self._remove(chance), self._add(chance)
        if removed is None or added is None:
            return None
        kept = [sink for sink in removed[0].sinks if sink in self.sinks]
        gone = next(sink for sink in self.sinks if sink not in kept)
        new = next(sink for sink in added[0].sinks if sink not in self.sinks)
        put = tuple(replace(new, at=gone.at) if sink == gone else sink for sink in self.sinks)
        return replace(self, sinks=put), f"replace {gone.uid} by {new.uid}"

    def _move(self, chance: random.Random) -> tuple[Layout, str]:
        at = chance.randrange(len(self.sinks))
        moved = replace(self.sinks[at], at=chance.choice(PLACES))
        return replace(self, sinks=(*self.sinks[:at], moved, *self.sinks[at + 1 :])), f"move {moved}"

    def _swap(self, chance: random.Random) -> tuple[Layout, str] | None:
        if len(self.sinks) < 2:
            return None
        one, two = chance.sample(self.sinks, 2)
        places = {one.uid: two.at, two.uid: one.at}
        swapped = tuple(replace(sink, at=places.get(sink.uid, sink.at)) for sink in self.sinks)
        return replace(self, sinks=swapped), f"swap {one.uid} and {two.uid}"

    def _reorder(self, chance: random.Random) -> tuple[Layout, str]:
        return replace(self, sinks=tuple(chance.sample(self.sinks, len(self.sinks)))), "reorder"

    def _feed(self, chance: random.Random) -> tuple[Layout, str]:
        reads = chance.choice(("source", "plain", "stored"))
        return replace(self, reads=reads), f"let the operator read {reads}"

    def _elsewhere(self, chance: random.Random) -> tuple[Layout, str]:
        at = chance.randrange(len(self.sinks))
        moved = replace(self.sinks[at], directory=_new_directory(self.sinks[at].uid, chance))
        return replace(self, sinks=(*self.sinks[:at], moved, *self.sinks[at + 1 :])), f"write to {moved}"

    @property
    def uids(self) -> frozenset[str]:
        return frozenset(sink.uid for sink in self.sinks)

    @property
    def places(self) -> frozenset[tuple[str, str]]:
        """The sinks and where they write."""
        return frozenset((sink.uid, sink.directory) for sink in self.sinks)

    def to_json(self) -> str:
        return json.dumps([self.reads, *([sink.uid, sink.at, sink.directory] for sink in self.sinks)])

    @staticmethod
    def from_json(text: str) -> Layout:
        reads, *sinks = json.loads(text)
        return Layout(tuple(SinkAt(*sink) for sink in sinks), reads)


def _new_directory(uid: str, chance: random.Random) -> str:
    return f"{uid}-{chance.randrange(1_000_000)}"


@dataclass(frozen=True)
class Shown:
    """A file that a sink has shown, or rows that were put aside for it."""

    uid: str
    epoch: int
    path: Path

    @cached_property
    def rows(self) -> list[dict[str, int]]:
        found: list[dict[str, int]] = pq.read_table(self.path).to_pylist()
        return found


@dataclass
class Books:
    """What every sink must show by now, and what it has shown."""

    root: Path
    owed: dict[str, dict[int, range]] = field(default_factory=dict)
    """Sink uid -> epoch that was committed while the job had the sink -> its numbers."""
    settled: set[tuple[str, int]] = field(default_factory=set)
    """What sinks have shown or decided to show: an epoch of theirs stays what it was then, whatever other
    copies say of it."""
    began: dict[str, int] = field(default_factory=dict)
    """Sink uid -> the newest epoch that it began after."""
    taken: int = 0
    robbed: set[str] = field(default_factory=set)
    """The names of the files that a consumer took."""

    @property
    def outputs(self) -> Path:
        return self.root / "out"

    @property
    def checkpoint(self) -> Path:
        return self.root / "ck"

    def learn(self) -> None:
        """Read the commit records: where the source stood then, and how many rows each epoch gave."""
        self._learn_marks()
        for record in self._records():
            members = {*record.published_through, *(uid for file in record.staged for uid in file.sinks)}
            end = record.positions[SOURCE]
            for epoch in sorted(map(int, record.attempts), reverse=True):
                files = [file for file in record.staged if file.epoch == epoch]
                rows = sum(file.rows for file in files if file.stream == files[0].stream)
                self._committed(epoch, range(end - rows, end), members)
                end -= rows
        self.settled |= {(each.uid, each.epoch) for each in self.shown()} | self._learn_marks()

    def _learn_marks(self) -> set[tuple[str, int]]:
        """What sinks have decided to show. A sink that came into the job after an epoch does not owe it, also
        when it is committed again."""
        decided = set()
        for path in self.outputs.glob("*/_holdfast/*/*"):
            uid = path.parent.name
            if not path.name.isdecimal():
                continue
            if json.loads(path.read_bytes())["file"]:
                decided.add((uid, int(path.name)))
            else:
                self.began[uid] = max(self.began.get(uid, 0), int(path.name))
        return decided

    def lose(self) -> None:
        """Commits were lost: what no sink has shown of them is owed no more, unless it is committed again."""
        epochs = self._committed_epochs()
        for uid, owed in self.owed.items():
            self.owed[uid] = {
                epoch: numbers
                for epoch, numbers in owed.items()
                if (uid, epoch) in self.settled or epoch in epochs or epoch < min(epochs, default=0)
            }
        self.learn()

    def _committed(self, epoch: int, numbers: range, members: set[str]) -> None:
        for uid in members:
            # What is older than all that a sink has shown was committed before it came, or was shown already.
            shown = (shown for name, shown in self.settled if name == uid)
            if epoch > max(self.began.get(uid, 0), *shown, 0):
                self.owed.setdefault(uid, {})[epoch] = numbers

    def consume(self, chance: random.Random) -> int:
        """Take some of the files away, as a consumer does."""
        found = [shown.path for shown in self._in(self.outputs)]
        chosen = [path for path in found if chance.random() < 0.7]
        for path in chosen:
            self.taken += 1
            self.robbed.add(str(path.relative_to(self.root)))
            to = self.root / "taken" / f"{self.taken:06d}"
            to.mkdir(parents=True)
            shutil.move(path, to / path.name)
        return len(chosen)

    def shown(self) -> list[Shown]:
        """Rows that were put aside count where the sink has not shown them: what it had shown when the job
        lost it cannot be known."""
        shown = [each for below in ("out", "taken") for each in self._in(self.root / below)]
        known = {(each.uid, each.epoch) for each in shown}
        return shown + [each for each in self._in(self.root / "aside") if (each.uid, each.epoch) not in known]

    def _in(self, directory: Path) -> list[Shown]:
        found = []
        for path in sorted(directory.glob("*/*.parquet")):
            uid, _, epoch = path.stem.rpartition("-")
            found.append(Shown(uid, int(epoch), path))
        return found

    def wrong(self, waits: bool) -> list[str]:
        """What is lost, doubled or made up. `waits`: committed epochs may wait to be shown."""
        shown = self.shown()
        reasons = []
        for (uid, epoch), times in Counter((each.uid, each.epoch) for each in shown).items():
            if times > 1:
                reasons.append(f"{uid} has shown epoch {epoch} {times} times")
        for each in shown:
            reasons += self._wrong_in(each)
        if waits:
            return reasons
        seen = {(each.uid, each.epoch) for each in shown}
        for uid, epochs in self.owed.items():
            for epoch, numbers in epochs.items():
                if (uid, epoch) not in seen:
                    reasons.append(f"{uid} has not shown epoch {epoch} ({numbers})")
            ids = Counter(row["id"] for each in shown if each.uid == uid for row in each.rows)
            doubled = sorted(number for number, times in ids.items() if times > 1)
            if doubled:
                reasons.append(f"{uid} has shown {len(doubled)} numbers twice, the first is {doubled[0]}")
        return reasons

    def _wrong_in(self, each: Shown) -> Iterator[str]:
        ids = sorted(row["id"] for row in each.rows)
        numbers = self.owed.get(each.uid, {}).get(each.epoch)
        if numbers is None or ids != list(numbers):
            yield f"{each.uid} shows {ids[0]} to {ids[-1]} for epoch {each.epoch}, committed are {numbers}"
        if "seq" in each.rows[0] and sorted(row["seq"] - 1 for row in each.rows) != ids:
            yield f"{each.uid}, epoch {each.epoch}: the count is {each.rows[0]['seq']} for {ids[0]}"

    def wrong_with_main(self, limit: int) -> list[str]:
        ids = sorted(row["id"] for each in self.shown() if each.uid == MAIN for row in each.rows)
        return [] if ids == list(range(limit)) else [f"{MAIN} shows {len(ids)} numbers, not 0 to {limit - 1}"]

    def last_epoch(self) -> int:
        return max(self._committed_epochs(), default=0)

    def _committed_epochs(self) -> set[int]:
        """Those of the commit records that are there and can be read."""
        return {int(epoch) for record in self._records() for epoch in record.attempts}

    def _records(self) -> Iterator[CommitRecord]:
        chain = History(LocalStorage(self.checkpoint, fsync=False))
        for number in chain.numbers():
            with contextlib.suppress(CorruptionError):
                yield chain.record(number)

    def listing(self) -> dict[str, int]:
        """What a refusal must leave as it was: the checkpoint but for what says who runs, and the sinks."""
        kept = ("commits", "manifests", "plans", "data", "snapshots", "floor", "pins")
        roots = [self.checkpoint / name for name in kept] + [self.outputs]
        files = (path for root in roots for path in root.rglob("*") if path.is_file())
        return {
            str(path.relative_to(self.root)): path.stat().st_size
            for path in files
            if ".tmp" not in path.parts
        }
