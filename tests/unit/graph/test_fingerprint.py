from __future__ import annotations

import copy
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.connectors.channel import ChannelSink
from holdfast.connectors.files.source import FileSource
from holdfast.connectors.memory import MemorySink
from holdfast.graph.fingerprint import fingerprint_parts
from holdfast.graph.functions import KeyedFunction
from holdfast.graph.streams import Declaration

SRC = Path(__file__).resolve().parents[3] / "src"

JOB = """
import functools
from holdfast.graph import aggregates as hf
from holdfast.graph.fingerprint import fingerprint
from holdfast.graph.functions import KeyedFunction
from holdfast.graph.streams import Declaration
from holdfast.connectors.files.source import FileSource
from holdfast.connectors.memory import MemorySink
from holdfast.state.cells.declarations import ReducingState, ValueState

LIMIT = 10

def helper(x):
    return x + 1

def wanted(limit, names):
    return lambda df: [row for row in df if row in {"b", "a", "c"} and limit and names]

class Base(KeyedFunction):
    def shared(self):
        return helper(LIMIT)

class Totals(Base):
    output = "user string, total long"
    total = ValueState("long", default=0)
    top = ReducingState("long", lambda a, b: max(a, b))

    def __init__(self, factor):
        self.factor = factor

    def process(self, row, ctx):
        try:
            yield row.user, self.shared() * self.factor
        except ValueError:
            pass

job = Declaration("job")
rows = job.source(FileSource("in/", format="json", schema="user string"), uid="in")
rows = rows.transform(wanted(3, {"x": [1.5, None], "y": {"p", "q", "r"}}))
rows = rows.transform(functools.partial(helper))
totals = rows.key_by("user").process(Totals(2), uid="totals")
totals.sink(MemorySink(), uid="out")
totals.key_by("user").aggregate(uid="sums", total=hf.sum("total")).sink(MemorySink(), uid="sums-out")
found = fingerprint(job.graph())
"""


def fingerprint_here(text: str) -> str:
    """In this process, as `holdfast run` loads a job file: under a module name that is not __main__."""
    module: dict[str, Any] = {"__name__": "app"}
    exec(compile(text, "app.py", "exec", dont_inherit=True), module)
    return str(module["found"])


def fingerprint_elsewhere(text: str, directory: Path, hash_seed: int) -> str:
    file = directory / "app.py"
    file.write_text(f"{text}\nprint(found)\n")
    environment = {**os.environ, "PYTHONHASHSEED": str(hash_seed), "PYTHONPATH": str(SRC)}
    run = subprocess.run(
        [sys.executable, str(file)],
        env=environment,
        cwd=directory,
        capture_output=True,
        text=True,
        check=True,
    )
    return run.stdout.strip()


@pytest.mark.parametrize("hash_seed", [1, 2, 3])
def test_another_process_hash_seed_directory_and_line_numbers_give_the_same(
    tmp_path: Path, hash_seed: int
) -> None:
    moved = "\n\n# moved down\n" + JOB.replace("class Totals", "\n\nclass Totals")
    assert fingerprint_elsewhere(moved, tmp_path, hash_seed) == fingerprint_here(JOB)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("LIMIT = 10", "LIMIT = 11"),
        ("return x + 1", "return x + 2"),
        ("return x + 1", "return x - 1"),
        ('row in {"b", "a", "c"}', 'row in {"b", "a", "d"}'),
        ("wanted(3,", "wanted(4,"),
        ("[1.5, None]", "[1.5, 0]"),
        ('"p", "q", "r"', '"p", "q", "s"'),
        ("return helper(LIMIT)", "return helper(-LIMIT)"),
        ("default=0", "default=1"),
        ("max(a, b)", "min(a, b)"),
        ('ValueState("long", default=0)', 'ValueState("double", default=0.0)'),
        ("Totals(2)", "Totals(3)"),
        ("except ValueError", "except KeyError"),
        ('"in/"', '"other/"'),
        ('schema="user string"', 'schema="user string, word string"'),
        ('uid="totals"', 'uid="total"'),
        ('key_by("user").process', 'key_by("user", order_by="user").process'),
        ('hf.sum("total")', 'hf.max("total")'),
        ('Declaration("job")', 'Declaration("job2")'),
        ("rows = rows.transform(functools.partial(helper))", "rows = rows.transform(helper)"),
        ("rows.key_by", "rows.union(rows).key_by"),
    ],
)
def test_any_change_of_meaning_gives_another(before: str, after: str) -> None:
    assert before in JOB
    assert fingerprint_here(JOB.replace(before, after)) != fingerprint_here(JOB)


def test_a_source_that_crashed_on_purpose_keeps_its_fingerprint() -> None:
    from holdfast.connectors.memory import CRASH, MemorySink, MemorySource, SimulatedCrash
    from holdfast.graph.fingerprint import fingerprint
    from holdfast.graph.streams import Declaration

    job, source = Declaration("job"), MemorySource([CRASH, 1])
    job.source(source, uid="in").sink(MemorySink(), uid="out")
    before = fingerprint(job.graph())
    with pytest.raises(SimulatedCrash):
        source.reader([]).next(None, None, 0)
    assert fingerprint(job.graph()) == before


def test_an_operator_without_keys_is_part_of_the_fingerprint() -> None:
    job = """
from typing import Any
from holdfast.graph.fingerprint import fingerprint
from holdfast.graph.functions import OperatorFunction
from holdfast.graph.streams import Declaration
from holdfast.connectors.memory import MemorySink, MemorySource
from holdfast.state.cells.declarations import ListState

class Seen(OperatorFunction):
    output = "user string"
    users = ListState("string", redistribute="split")
    def process(self, row: Any, ctx: Any) -> Any:
        self.users.append(row.user)

job = Declaration("job")
rows = job.source(MemorySource([], schema="user string"), uid="in")
rows.process(Seen(), uid="seen", on_error="fail").sink(MemorySink(), uid="out")
found = fingerprint(job.graph())
"""
    whole = fingerprint_here(job)
    assert fingerprint_here(job) == whole
    for before, after in [
        ('redistribute="split"', 'redistribute="union"'),
        ("append(row.user)", "append(row.user.lower())"),
        ('uid="seen"', 'uid="seen-2"'),
        ('on_error="fail"', 'on_error="dead-letter"'),
    ]:
        assert fingerprint_here(job.replace(before, after)) != whole, before


def parts_of(text: str) -> dict[str, str]:
    names: dict[str, Any] = {"__name__": "job_under_test"}
    exec(compile(text, "job.py", "exec"), names)
    return fingerprint_parts(names["job"].graph())


def test_the_parts_are_named_as_people_name_them_and_a_change_shows_in_its_part_alone() -> None:
    before, after = parts_of(JOB), parts_of(JOB.replace("Totals(2)", "Totals(3)"))
    assert list(before) == [
        "source in", "transform 1", "transform 2", "operator totals", "sink out", "operator sums",
        "sink sums-out",
    ]  # fmt: skip
    assert {name for name in before if before[name] != after[name]} == {"operator totals"}
    assert parts_of(JOB) == before


class Doubling(KeyedFunction):
    output = "user string"

    def process(self, row: Any, ctx: Any) -> Any:
        yield row.user


def test_code_that_was_sent_to_workers_is_still_the_same_code() -> None:
    job = Declaration("job")
    rows = job.source(FileSource("in/", format="json", schema="user string"), uid="in")
    rows.key_by("user").process(Doubling(), uid="doubling")
    before = fingerprint_parts(job.graph())
    copy.copy(Doubling())
    assert fingerprint_parts(job.graph()) == before


def test_where_holdfast_keeps_its_own_classes_does_not_belong_to_the_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = fingerprint_parts(_declared())

    monkeypatch.setattr(FileSource, "__module__", "holdfast.elsewhere.source")
    monkeypatch.setattr(KeyedFunction, "__module__", "holdfast.elsewhere.functions")

    assert fingerprint_parts(_declared()) == before


def _declared() -> Any:
    job = Declaration("job")
    rows = job.source(FileSource("in/", format="json", schema="user string"), uid="in")
    rows.key_by("user").process(_Totals(), uid="totals").sink(MemorySink(), uid="out")
    return job.graph()


class _Totals(KeyedFunction):
    output = "user string"


def test_what_happens_to_malformed_rows_is_a_part_of_the_job_and_silence_is_not() -> None:
    def made(**given: Any) -> str:
        job = Declaration("job")
        source = FileSource("in", format="json", schema="n long")
        job.source(source, uid="rows", **given).sink(MemorySink(), uid="out")
        return fingerprint_parts(job.graph())["source rows"]

    assert made() == made(on_error="fail") == made(stalled_after="5m") != made(on_error="dead-letter")


def test_how_much_a_channel_keeps_does_not_belong_to_the_job() -> None:
    def declared(keep_epochs: int) -> dict[str, str]:
        job = Declaration("job")
        rows = job.source(FileSource("in/", format="json", schema="user string"), uid="in")
        rows.sink(ChannelSink(keep_epochs=keep_epochs), uid="orders")
        return dict(fingerprint_parts(job.graph()))

    assert "sink orders" in declared(1)
    assert declared(1) == declared(2)


APP = """
from holdfast.connectors.memory import MemorySink, MemorySource
from holdfast.graph.fingerprint import fingerprint
from holdfast.graph.streams import Declaration
import helpers
from shapes import Shape
from wrapped import rounded

def change(frame):
    return rounded(helpers.shaped(Shape().of(frame)))

job = Declaration("job")
job.source(MemorySource([], schema="user string"), uid="in").transform(change).sink(MemorySink(), uid="out")
"""
HELPERS = """
import os
import sys
from numbers_of import doubled

HERE, STARTED = os.path.dirname(__file__), []

def shaped(frame):
    STARTED.append(frame)
    return doubled(frame, HERE, __file__)

def unused(frame):
    return frame.limit(1)
"""
BESIDE = {
    "helpers.py": HELPERS,
    "numbers_of.py": "def doubled(frame, *places):\n    return frame.select('user', '2')\n",
    "shapes.py": """
from numbers_of import doubled

class Base:
    seen = []

    def kept(self, frame):
        return frame.where('true')

class Shape(Base):
    @staticmethod
    def of(frame):
        return Shape().kept(frame)
""",
    "wrapped.py": """
import functools

def told(function):
    @functools.wraps(function)
    def telling(frame):
        return function(frame)
    return telling

@told
def rounded(frame):
    return frame.select('round(n)')
""",
}


def fingerprint_beside(directory: Path, before: str = "", after: str = "", *, more: str = "") -> str:
    directory.mkdir()
    for name, text in BESIDE.items():
        (directory / name).write_text(text.replace(before, after) if before else text)
    return fingerprint_elsewhere(f"{APP}\n{more}\nfound = fingerprint(job.graph())", directory, 1)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("'2'", "'3'"),
        ("return doubled(frame, HERE", "return doubled(doubled(frame), HERE"),
        ("where('true')", "where('false')"),
        ("Shape().kept(frame)", "Shape().kept(frame).distinct()"),
        ("round(n)", "floor(n)"),
    ],
)
def test_a_change_in_a_module_that_ships_with_the_job_gives_another(
    tmp_path: Path, before: str, after: str
) -> None:
    assert any(before in text for text in BESIDE.values())
    assert fingerprint_beside(tmp_path / "a") != fingerprint_beside(tmp_path / "b", before, after)


def test_another_directory_and_what_has_been_done_there_give_the_same(tmp_path: Path) -> None:
    """Two nodes must not take each other's code for another one."""
    here = fingerprint_beside(tmp_path / "here")
    there = fingerprint_beside(tmp_path / "there", more="helpers.STARTED.append(1); Shape.seen.append(2)")
    assert here == there
    assert fingerprint_beside(tmp_path / "more", "frame.limit(1)", "frame.limit(2)") == here, "it is not used"


def test_a_module_from_elsewhere_counts_by_its_name(tmp_path: Path) -> None:
    """A library is not of the job, wherever it is installed."""

    def found(number: int) -> str:
        app, library = tmp_path / f"app{number}", tmp_path / f"library{number}"
        library.mkdir()
        (library / "numbers_of.py").write_text(BESIDE["numbers_of.py"].replace("2", str(number)))
        app.mkdir()
        for name in BESIDE.keys() - {"numbers_of.py"}:
            (app / name).write_text(BESIDE[name])
        path = f"import sys; sys.path.append({str(library)!r})"
        return fingerprint_elsewhere(f"{path}\n{APP}\nfound = fingerprint(job.graph())", app, 1)

    assert found(2) == found(3)


def test_modules_of_the_package_that_the_job_is_in_ship_with_it(tmp_path: Path) -> None:
    def found(number: int) -> str:
        package = tmp_path / str(number) / "shop"
        (package / "jobs").mkdir(parents=True)
        (package / "__init__.py").write_text("")
        (package / "tables.py").write_text(f"def shaped(frame):\n    return frame.limit({number})\n")
        text = APP.partition("import helpers")[0] + APP.partition("wrapped import rounded\n")[2]
        text = text.replace("rounded(helpers.", "(").replace("Shape().of(", "(")
        text = f"from shop.tables import shaped\n{text}"
        path = f"import sys; sys.path.append({str(package.parent)!r})"
        return fingerprint_elsewhere(f"{path}\n{text}\nfound = fingerprint(job.graph())", package / "jobs", 1)

    assert found(1) != found(2)
