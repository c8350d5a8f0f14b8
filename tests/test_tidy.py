"""Style as a test: each finding names its place and says what to do instead.

A rule is a function from a source file to findings. Rules have their own tests at the end, so that a rule
that finds nothing is known to be able to find something.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "holdfast"

FUNCTION_LINES_MAX = 60
MODULE_LINES_MAX = 600
LINE_LENGTH_MAX = 110
TEXT_BYTES_MAX = 1_000_000

# Packages that get time and chance passed in, so that a test can hold them in its hand.
PURE_PACKAGES = ("state", "connectors", "graph", "checkpoint", "cluster")
BANNED_CALLS = {
    "time.time": "take a Clock and call now_ms()",
    "time.time_ns": "take a Clock and call now_ms()",
    "time.sleep": "take a Clock and call sleep()",
    "datetime.now": "take a Clock and call now_ms()",
    "datetime.utcnow": "take a Clock and call now_ms()",
    "datetime.today": "take a Clock and call now_ms()",
    "uuid.uuid1": "take the name as an argument; the runtime makes names",
    "uuid.uuid4": "take the name as an argument; the runtime makes names",
}

# One door per vendor: paths below src/holdfast that may import it.
VENDOR_DOORS = {
    "confluent_kafka": ("connectors/kafka/",),
    "fastavro": ("connectors/kafka/avro.py",),
    "deltalake": ("connectors/lakes/delta.py",),
    "kazoo": ("cluster/zookeeper.py",),
    "lmdb": ("state/local/lmdb_store.py",),
    "obstore": ("storage/object_store.py",),
    "pika": ("connectors/rabbitmq/connection.py",),
    "prometheus_client": ("dashboard/",),
    "pyiceberg": ("connectors/lakes/iceberg.py",),
    "psycopg": ("connectors/postgres/", "storage/key_saves/postgres.py"),
    "pyspark": ("admin/", "nodes/", "runtime/", "inspect/", "tasks/", "connectors/"),
    "redis": ("connectors/redis/connection.py", "storage/key_saves/redis.py"),
    "rich": ("cli/", "connectors/console.py"),
    "rocksdict": ("state/local/rocksdb_store.py",),
    "starlette": ("dashboard/",),
    "typer": ("cli/",),
    "uvicorn": ("dashboard/",),
}

GRAB_BAGS = {"utils", "util", "helpers", "helper", "common", "misc", "tools"}
PRINTING_ALLOWED = ("cli/", "connectors/console.py")
PUBLIC_INITS = (
    "__init__.py", "connectors/__init__.py", "dashboard/__init__.py", "testing/__init__.py",
    "testing/conformance/__init__.py",
)  # fmt: skip

# Spelled in pieces where this very file would otherwise be its own finding.
UNFINISHED = re.compile(r"\b(" + "|".join(["TO" + "DO", "FIX" + "ME", "X" + "XX"]) + r")\b")
MACHINE_PATH = re.compile(r"(?<![\w.~-])/(?:work|root|home)" + r"/[\w.-]")
PRIVATE_SPARK = re.compile(r"\._j(?:df|vm|sc|sparkSession|seq|rdd|gateway|reader|writer)\b|\b_" + r"jvm\b")
MODULE_PATH = re.compile(r"(?<![\w./-])(?:[\w.-]+/)+[\w-]+\.py\b")
REGISTRY_HOST = re.compile(
    r"(?i)\b(?:pypi\.(?:org|python\.org)|files\.pythonhosted\.org)"
    r"|\b[\w.-]*(?:artifactory|nexus|devpi)[\w-]*\.[a-z]{2,}"
    r"|--(?:extra-)?index-" + r"url\b"
)


@dataclass(frozen=True)
class Source:
    """One file; `name` is its path below src/holdfast, or below the checkout for anything else."""

    name: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    def below(self, *prefixes: str) -> bool:
        return self.name.startswith(prefixes)

    def matches(self, pattern: re.Pattern[str]) -> Iterator[tuple[int, str]]:
        for number, line in enumerate(self.text.splitlines(), start=1):
            if found := pattern.search(line):
                yield number, found[0]


Rule = Callable[[Source], Iterator[str]]


@cache
def package_sources() -> list[Source]:
    paths = sorted(PACKAGE.rglob("*.py"))
    return [Source(path.relative_to(PACKAGE).as_posix(), path.read_text()) for path in paths]


@cache
def every_python_source() -> list[Source]:
    folders = [ROOT / name for name in ("src", "tests", "bench", "examples")]
    paths = sorted(path for folder in folders for path in folder.rglob("*.py"))
    return [Source(path.relative_to(ROOT).as_posix(), path.read_text()) for path in paths]


@cache
def every_kept_text() -> list[Source]:
    """All text files under version control, and those that would be added next."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    sources = []
    for name in sorted(listed.stdout.splitlines()):
        path = ROOT / name
        if path.is_file() and path.stat().st_size <= TEXT_BYTES_MAX:
            with suppress(UnicodeDecodeError):
                sources.append(Source(name, path.read_text()))
    return sources


def findings(rule: Rule, sources: list[Source]) -> list[str]:
    return [f"{source.name}:{finding}" for source in sources for finding in rule(source)]


# Rules for every Python file.


def long_functions(source: Source) -> Iterator[str]:
    for node in ast.walk(source.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            size = node.end_lineno - node.lineno + 1
            if size > FUNCTION_LINES_MAX:
                remedy = f"the limit is {FUNCTION_LINES_MAX}; give a part of it a name of its own"
                yield f"{node.lineno}: {node.name} has {size} lines, {remedy}"


def long_modules(source: Source) -> Iterator[str]:
    size = len(source.text.splitlines())
    if size > MODULE_LINES_MAX:
        yield f"1: {size} lines, the limit is {MODULE_LINES_MAX}; find the two things it does and part them"


def long_lines(source: Source) -> Iterator[str]:
    for number, line in enumerate(source.text.splitlines(), start=1):
        if len(line) > LINE_LENGTH_MAX:
            yield f"{number}: {len(line)} characters, the limit is {LINE_LENGTH_MAX}; break the line"


def bare_excepts(source: Source) -> Iterator[str]:
    for node in ast.walk(source.tree):
        if isinstance(node, ast.ExceptHandler) and node.type is None:
            yield f"{node.lineno}: bare except also catches the order to stop; name the exception"


def grab_bags(source: Source) -> Iterator[str]:
    path = Path(source.name)
    if GRAB_BAGS & {path.stem, *path.parent.parts}:
        yield "1: a name that means 'anything'; name the module after what is in it"


# Rules for the package.


def banned_calls(source: Source) -> Iterator[str]:
    if not source.below(*(f"{package}/" for package in PURE_PACKAGES)):
        return
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            for banned, remedy in BANNED_CALLS.items():
                if called == banned or called.endswith(f".{banned}"):
                    yield f"{node.lineno}: {called}() is banned here; {remedy}"
    for line, module, names in imports(source):
        if module in {"random", "secrets"}:
            yield f"{line}: {module} is banned here; take the chance as an argument (a seed, a name)"
        if module in {"time", "uuid"} and (taken := names & {"time", "time_ns", "sleep", "uuid1", "uuid4"}):
            yield f"{line}: {module}.{min(taken)} is banned here; take a Clock, or the name, instead"


def pickles(source: Source) -> Iterator[str]:
    if source.below("testing/conformance/"):
        # It sees whether Spark could pickle what it is given, and reads nothing back from storage.
        return
    for line, module, _ in imports(source):
        if {"pickle", "cloudpickle", "dill", "shelve"} & set(module.split(".")):
            yield f"{line}: {module} is banned, nothing read from storage is executed; use msgspec or Arrow"


def prints(source: Source) -> Iterator[str]:
    if source.below(*PRINTING_ALLOWED):
        return
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
            yield f"{node.lineno}: print() is for cli and the console sink; use logging, or return the text"


def code_in_init(source: Source) -> Iterator[str]:
    if Path(source.name).name != "__init__.py" or source.name in PUBLIC_INITS:
        return
    for node in source.tree.body:
        docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if not docstring:
            yield f"{node.lineno}: code in a package's __init__.py; move it to a module with a name"
            return


def closed_doors(source: Source) -> Iterator[str]:
    """Names used in annotations alone may come from anywhere: nothing is imported when the program runs."""
    for_types = type_only_lines(source)
    for line, module, _ in imports(source):
        vendor = module.split(".")[0]
        doors = VENDOR_DOORS.get(vendor)
        if doors is not None and not source.below(*doors) and line not in for_types:
            yield f"{line}: {vendor} comes in only through {' and '.join(doors)}; call what is there"


def early_spark(source: Source) -> Iterator[str]:
    """Declaring and checking a job must work with no Spark started, so connectors import it late."""
    if not source.below("connectors/"):
        return
    for node in source.tree.body:
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        if any(name.split(".")[0] == "pyspark" for name in names):
            yield f"{node.lineno}: pyspark imported with the module; do it in a function or if TYPE_CHECKING"


def private_spark(source: Source) -> Iterator[str]:
    for line, name in source.matches(PRIVATE_SPARK):
        yield f"{line}: {name} is not public PySpark and breaks with a minor release; find the public call"


# Rules for every text.


def unfinished(source: Source) -> Iterator[str]:
    for line, word in source.matches(UNFINISHED):
        yield f"{line}: {word} left behind; do it now, or say what holds today"


def machine_paths(source: Source) -> Iterator[str]:
    for line, path in source.matches(MACHINE_PATH):
        yield f"{line}: {path}... exists on one machine only; use a relative or temporary path"


def registry_hosts(source: Source) -> Iterator[str]:
    for line, host in source.matches(REGISTRY_HOST):
        yield f"{line}: {host} names a package registry; leave that to the installer's own settings"


def wrong_pointers(source: Source) -> Iterator[str]:
    """Pages name modules and tests by path; records of decisions also name what once was."""
    if not source.name.endswith(".md") or source.below("docs/decisions/"):
        return
    for line, path in source.matches(MODULE_PATH):
        if not any(each.name.endswith(path.lstrip("./")) for each in every_kept_text()):
            yield f"{line}: there is no {path}; name the file that has it now"


def imports(source: Source) -> Iterator[tuple[int, str, set[str]]]:
    """Every import in the file, wherever it stands: line, module, names taken from it."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name, set()) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.lineno, node.module or "", {alias.name for alias in node.names}


def type_only_lines(source: Source) -> set[int]:
    """The lines under `if TYPE_CHECKING`."""
    return {
        line
        for node in ast.walk(source.tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}
        for statement in node.body
        for line in range(statement.lineno, (statement.end_lineno or statement.lineno) + 1)
    }


PYTHON_RULES: tuple[Rule, ...] = (long_functions, long_modules, long_lines, bare_excepts, grab_bags)
PACKAGE_RULES: tuple[Rule, ...] = (
    banned_calls, pickles, prints, code_in_init, closed_doors, early_spark, private_spark,
)  # fmt: skip
TEXT_RULES: tuple[Rule, ...] = (unfinished, machine_paths, registry_hosts, wrong_pointers)


@pytest.mark.parametrize("rule", PYTHON_RULES, ids=lambda rule: rule.__name__)
def test_python_is_tidy(rule: Rule) -> None:
    found = findings(rule, every_python_source())
    assert not found, "\n" + "\n".join(found)


@pytest.mark.parametrize("rule", PACKAGE_RULES, ids=lambda rule: rule.__name__)
def test_package_is_tidy(rule: Rule) -> None:
    found = findings(rule, package_sources())
    assert not found, "\n" + "\n".join(found)


@pytest.mark.parametrize("rule", TEXT_RULES, ids=lambda rule: rule.__name__)
def test_texts_are_tidy(rule: Rule) -> None:
    found = findings(rule, every_kept_text())
    assert not found, "\n" + "\n".join(found)


def test_what_workers_import_starts_neither_spark_nor_the_terminal() -> None:
    """A Python worker starts once per task slot: what it imports must be light."""
    light = ("state/", "storage/", "tasks/")
    modules = [
        "holdfast." + source.name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for source in package_sources()
        if source.below(*light)
    ]
    heavy = ("pyspark", "rich", "typer", "pandas", "duckdb", "matplotlib")
    program = (
        f"import importlib, sys\nfor name in {modules!r}: importlib.import_module(name)\n"
        f"print(*sorted(set({heavy!r}) & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT / "src", capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [], "import these in the functions that need them, or if TYPE_CHECKING"


# The rules themselves: each finds what it is for, and lets the right way pass.


@pytest.mark.parametrize(
    ("rule", "name", "bad"),
    [
        (long_functions, "a.py", "def f():\n" + "    pass\n" * FUNCTION_LINES_MAX),
        (long_modules, "a.py", "pass\n" * (MODULE_LINES_MAX + 1)),
        (long_lines, "a.py", "#" * (LINE_LENGTH_MAX + 1)),
        (bare_excepts, "a.py", "try:\n    pass\nexcept:\n    pass\n"),
        (grab_bags, "state/utils.py", ""),
        (grab_bags, "helpers/words.py", ""),
        (banned_calls, "state/a.py", "import time\ntime.time()\n"),
        (banned_calls, "cluster/a.py", "from time import sleep\n"),
        (banned_calls, "connectors/a.py", "import random\n"),
        (banned_calls, "graph/a.py", "import datetime\ndatetime.datetime.now()\n"),
        (banned_calls, "checkpoint/a.py", "import uuid\nuuid.uuid4()\n"),
        (pickles, "state/a.py", "def f():\n    import pickle\n"),
        (pickles, "runtime/a.py", "from pyspark.cloudpickle import dumps\n"),
        (prints, "state/a.py", "print(1)\n"),
        (code_in_init, "state/__init__.py", "from holdfast.ids import Term\n"),
        (closed_doors, "state/files/delta.py", "import lmdb\n"),
        (closed_doors, "connectors/files.py", "import obstore\n"),
        (closed_doors, "graph/job_graph.py", "from pyspark.sql import DataFrame\n"),
        (closed_doors, "graph/a.py", "if not TYPE_CHECKING:\n    from pyspark.sql import DataFrame\n"),
        (early_spark, "connectors/files.py", "from pyspark.sql import DataFrame\n"),
        (private_spark, "runtime/a.py", "frame._" + "jdf\n"),
        (unfinished, "a.md", "TO" + "DO: later"),
        (machine_paths, "a.md", "see /wo" + "rk/notes"),
        (registry_hosts, "a.txt", "--index-" + "url https://example.test"),
        (wrong_pointers, "a.md", "see `storage/no_such_module.py`"),
    ],
)
def test_rule_finds(rule: Rule, name: str, bad: str) -> None:
    assert list(rule(Source(name, bad)))


@pytest.mark.parametrize(
    ("rule", "name", "good"),
    [
        (long_functions, "a.py", "def f():\n" + "    pass\n" * (FUNCTION_LINES_MAX - 1)),
        (long_lines, "a.py", "#" * LINE_LENGTH_MAX),
        (banned_calls, "runtime/a.py", "import time\ntime.sleep(1)\n"),
        (banned_calls, "storage/local_directory.py", "import uuid\nuuid.uuid4()\n"),
        (banned_calls, "state/a.py", "clock.sleep(1)\n"),
        (prints, "cli/main.py", "print(1)\n"),
        (code_in_init, "__init__.py", "from holdfast.ids import Term\n"),
        (code_in_init, "connectors/__init__.py", "from holdfast.ids import Term\n"),
        (code_in_init, "state/__init__.py", '"""State."""\n'),
        (closed_doors, "state/local/lmdb_store.py", "import lmdb\n"),
        (closed_doors, "connectors/files.py", "def f():\n    from pyspark.sql import DataFrame\n"),
        (closed_doors, "graph/a.py", "if TYPE_CHECKING:\n    from pyspark.sql import DataFrame\n"),
        (early_spark, "connectors/files.py", "if TYPE_CHECKING:\n    from pyspark.sql import DataFrame\n"),
        (machine_paths, "a.md", "a/work/b, ./home/c, network/root/d"),
        (
            wrong_pointers,
            "a.md",
            "`steps.py`, `src/holdfast/steps.py`, `../../tests/test_tidy.py`, /opt/app.py",
        ),
        (wrong_pointers, "docs/decisions/1.md", "it was in `storage/no_such_module.py`"),
    ],
)
def test_rule_lets_pass(rule: Rule, name: str, good: str) -> None:
    assert not list(rule(Source(name, good)))
