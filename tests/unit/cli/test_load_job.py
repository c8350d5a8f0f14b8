"""A user's file becomes a job: which one, and how mistakes are told."""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

import pytest

from holdfast.cli.load_job import MODULE_NAME, load_job, load_jobs, load_module
from holdfast.errors import DefinitionError
from holdfast.graph.fingerprint import fingerprint

JOB = """
import holdfast as hf
FACTOR = 3

def times(value):
    return FACTOR * value

class Double(hf.KeyedFunction):
    output = "value long"
    seen = hf.ValueState("long", default=0)

    def process(self, row, ctx):
        self.seen.value += 1
        yield (times(row.value),)

job = hf.Job("doubling")
stream = job.source(hf.MemorySource([1, 2]), uid="numbers").key_by("value").process(Double(), uid="double")
stream.sink(hf.MemorySink(), uid="out")
"""


@pytest.fixture(autouse=True)
def _paths_are_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PYTHONPATH", "")


def written(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "app.py"
    file.write_text(text)
    return file


def test_the_one_job_is_found(tmp_path: Path) -> None:
    assert load_job(written(tmp_path, JOB)).name == "doubling"


def test_a_file_that_was_changed_at_once_is_loaded_as_it_is_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    file = tmp_path / "app.py"
    for name in ("first", "other"):
        file.write_text(f"import holdfast as hf\njob = hf.Job({name!r})\n")
        os.utime(file, (1, 1))
        assert load_job(file).name == name
    assert [path.name for path in tmp_path.iterdir()] == ["app.py"]


def test_a_job_under_two_names_is_one_job(tmp_path: Path) -> None:
    assert load_job(written(tmp_path, JOB + "same = job\n")).name == "doubling"


def test_the_main_part_does_not_run(tmp_path: Path) -> None:
    text = JOB + "if __name__ == '__main__':\n    raise SystemExit('it ran')\n"
    assert load_job(written(tmp_path, text)).name == "doubling"


def test_of_several_jobs_one_must_be_named(tmp_path: Path) -> None:
    file = written(tmp_path, JOB + "other = hf.Job('other')\n")
    with pytest.raises(DefinitionError, match=r"declares 2 jobs \(doubling, other\); choose one with --job"):
        load_job(file)
    assert load_job(file, "other").name == "other"


def test_an_unknown_job_is_told_with_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(DefinitionError, match="no job named 'x'; it has doubling"):
        load_job(written(tmp_path, JOB), "x")


def test_a_file_without_a_job_is_told(tmp_path: Path) -> None:
    with pytest.raises(DefinitionError, match="declares no job"):
        load_job(written(tmp_path, "x = 1\n"))


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(DefinitionError, match=r"there is no file .*nothing\.py"):
        load_job(tmp_path / "nothing.py")


def test_a_file_of_another_kind_is_told(tmp_path: Path) -> None:
    file = tmp_path / "app.txt"
    file.write_text(JOB)
    with pytest.raises(DefinitionError, match=r"not a Python file.*\.py"):
        load_job(file)


def test_an_error_in_the_file_is_told_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(DefinitionError, match=r"\(line 2\): ZeroDivisionError: division by zero; mend it"):
        load_job(written(tmp_path, "x = 1\ny = x / 0\n"))


def test_what_the_file_defines_is_of_no_importable_module(tmp_path: Path) -> None:
    """Spark's pickler sends such things by value; of an importable module it would send the name alone."""
    module = load_module(written(tmp_path, JOB))
    assert module.Double.__module__ == MODULE_NAME
    assert MODULE_NAME not in sys.modules


def test_dataclasses_of_the_file_resolve_their_annotations(tmp_path: Path) -> None:
    text = "from __future__ import annotations\nfrom dataclasses import *\n@dataclass\nclass A:\n    x: int\n"
    assert load_module(written(tmp_path, text)).A(1).x == 1


def test_a_neighbouring_module_is_found_here_and_by_local_workers(tmp_path: Path) -> None:
    (tmp_path / "neighbour_of_app.py").write_text("NAME = 'next-door'\n")
    file = written(tmp_path, "import holdfast as hf\nfrom neighbour_of_app import NAME\njob = hf.Job(NAME)\n")
    assert load_job(file).name == "next-door"
    assert str(tmp_path) in os.environ["PYTHONPATH"].split(os.pathsep)


def test_the_command_line_and_the_script_are_the_same_job(tmp_path: Path) -> None:
    """Else a plan written by one would not be followed by the other."""
    file = written(tmp_path, JOB)
    as_script = runpy.run_path(str(file), run_name="__main__")["job"]
    assert fingerprint(load_job(file).graph()) == fingerprint(as_script.graph())


def test_a_node_takes_all_jobs_or_those_that_are_named(tmp_path: Path) -> None:
    file = written(tmp_path, JOB + "other = hf.Job('other')\nthird = hf.Job('third')\n")
    assert [job.name for job in load_jobs(file)] == ["doubling", "other", "third"]
    assert [job.name for job in load_jobs(file, ["third", "doubling", "third"])] == ["third", "doubling"]
    with pytest.raises(DefinitionError, match="no job named 'x'; it has doubling, other, third"):
        load_jobs(file, ["x"])


def test_two_jobs_of_one_name_cannot_share_a_cluster(tmp_path: Path) -> None:
    with pytest.raises(DefinitionError, match="several jobs of one name"):
        load_jobs(written(tmp_path, JOB + "other = hf.Job('doubling')\n"))


def test_a_declaration_that_is_refused_at_once_is_told_with_its_place(tmp_path: Path) -> None:
    file = tmp_path / "app.py"
    file.write_text(
        "import holdfast as hf\nclass Seen(hf.KeyedFunction):\n    n = hf.ValueState('long', ttl='0s')\n"
    )
    with pytest.raises(DefinitionError, match=r"^app\.py:3 Seen: ttl='0s' is no time at all; give at least"):
        load_job(file)
    file.write_text("import holdfast as hf\nn = hf.ListState('lang')\n")
    with pytest.raises(DefinitionError, match=r"^app\.py:2: "):
        load_job(file)
