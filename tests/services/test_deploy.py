"""The commands of docs/how-to/deploy.md, on a real cluster whose workers' Python lacks Holdfast.

The driver's environment has what Holdfast declares to need, and nothing else: what it lacks is seen here.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from holdfast.chaos.spark_cluster import Cluster, spark_home

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/how-to/deploy.md").read_text()
SMALLER = {
    "spark.cores.max=8": "spark.cores.max=2",
    "spark.executor.cores=4": "spark.executor.cores=1",
    "spark.executor.memory=2g": "spark.executor.memory=700m",
}
UNUSED = shutil.ignore_patterns("tests", "include", "__pycache__")

pytestmark = pytest.mark.timeout(1_800)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with pytest.MonkeyPatch.context() as patch:
        # Executors inherit the environment of their worker.
        patch.delenv("PYTHONPATH", raising=False)
        with Cluster(tmp_path_factory.mktemp("cluster")) as started:
            yield started


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """/opt/job of the page: the job and the driver's environment."""
    directory = tmp_path_factory.mktemp("job")
    for name in ("app.py", "prices.py"):
        (directory / name).write_text(file_named(name).replace("s3://shop/", f"{directory}/"))
    make_environment(directory / "env")
    (directory / "in").mkdir()
    return directory


def test_spark_submit_and_holdfast_run_bring_the_environment_along(cluster: Cluster, place: Path) -> None:
    (place / "in/1.json").write_text('{"user": "a", "n": 1}\n{"user": "b", "n": 5}\n{"user": "a", "n": 2}\n')
    # The archive of the page, with less work.
    packed = run(command("tar -C env"), place, GZIP="-1")
    assert packed.returncode == 0, packed.stderr
    submit = f"{command('export PYSPARK_DRIVER_PYTHON')}\n{command('env/bin/spark-submit --master spark')}"
    done = run(fitted(submit, cluster), place)
    assert done.returncode == 0, done.stderr[-3000:]
    assert shown(place) == {"a": 750, "b": 1250}

    (place / "in/2.json").write_text('{"user": "a", "n": 4}\n')
    settings = (ROOT / "deploy/spark-defaults.conf").read_text() + lines_from("spark.archives")
    settings = re.sub(r"^(spark\S+) +", r"\1=", settings, flags=re.MULTILINE)
    (place / "conf").mkdir()
    (place / "conf/spark-defaults.conf").write_text(fitted(settings, cluster).replace("/opt/job", str(place)))
    line = lines_from("export SPARK_CONF_DIR").strip() + " --until exhausted"
    line = line.replace("/opt/job", str(place)).replace("s3://shop/", f"{place}/")
    done = run(line, place)
    assert done.returncode == 0, done.stderr[-3000:]
    assert shown(place) == {"a": 1750, "b": 1250}


def test_executors_without_holdfast_are_one_line_with_what_to_do(cluster: Cluster, place: Path) -> None:
    (place / "in/0.json").write_text('{"user": "a", "n": 1}\n')
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place / "bare")], check=True)
    small = " ".join(f"--conf {setting}" for setting in SMALLER.values())
    done = run(
        f"env/bin/holdfast run app.py --checkpoint {place}/checkpoint --master {cluster.url}",
        place,
        PYSPARK_PYTHON=str(place / "bare/bin/python"),
        PYSPARK_SUBMIT_ARGS=f"{small} pyspark-shell",
    )
    assert done.returncode == 2, done.stderr[-3000:]
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert "revenue failed in Spark: the executors " in errors[0]
    assert errors[0].endswith("see docs/how-to/deploy.md")
    assert "Traceback" not in done.stderr


def test_a_master_that_is_not_there_is_named_and_is_worth_another_start(tmp_path: Path) -> None:
    """Spark tries it for a minute, and then fails at something else."""
    with socket.socket() as taken:
        # Nobody listens there, and nobody else comes to.
        taken.bind(("127.0.0.1", 0))
        master = f"spark://127.0.0.1:{taken.getsockname()[1]}"
        (tmp_path / "app.py").write_text(
            "import holdfast as hf\n"
            "job = hf.Job('numbers')\n"
            "job.source(hf.MemorySource([1]), uid='in').sink(hf.MemorySink(), uid='out')\n"
        )
        asked = [sys.executable, "-m", "holdfast", "run", str(tmp_path / "app.py"), "--master", master]
        done = subprocess.run([*asked, "--checkpoint", str(tmp_path / "ck")], capture_output=True, text=True)
    assert done.returncode == 75, done.stderr[-3000:]
    (told,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert told.startswith(
        f"error: the Spark master {master} does not answer (Spark has tried, and given up)"
    )


def file_named(name: str) -> str:
    """The file of the page that begins with its name in a comment."""
    found = re.search(rf"```python\n# {re.escape(name)}\n(.*?)```", PAGE, re.DOTALL)
    assert found is not None, f"the page has no {name}"
    return found[1]


def command(beginning: str) -> str:
    """The command of the page that begins so, with the lines that it goes on in."""
    found = re.search(rf"^{re.escape(beginning)}(?:.*\\\n)*.*$", PAGE, re.MULTILINE)
    assert found is not None, f"the page has no command {beginning}"
    return found[0]


def lines_from(beginning: str) -> str:
    """The lines of a block of the page, from the one that begins so."""
    found = re.search(rf"^{re.escape(beginning)}.*?(?=^```)", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None, f"the page has no line {beginning}"
    return found[0]


def fitted(text: str, cluster: Cluster) -> str:
    """For the cluster that is here."""
    text = text.replace("spark://master:7077", cluster.url)
    for setting, smaller in SMALLER.items():
        assert setting in text
        text = text.replace(setting, smaller)
    return text


def shown(place: Path) -> dict[str, int]:
    """The last row of every user."""
    rows: dict[str, int] = {}
    for file in sorted((place / "out").glob("*.json")):
        for line in file.read_text().splitlines():
            row = json.loads(line)
            rows[row["user"]] = max(rows.get(row["user"], 0), row["cents"])
    return rows


def make_environment(directory: Path) -> None:
    """What `pip install` of Holdfast makes, out of what is installed here."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(directory)], check=True)
    packages = next(directory.glob("lib/python3.*/site-packages"))
    for name in needed() - {"pyspark"}:
        distribution = importlib.metadata.distribution(name)
        for first in {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}:
            source = Path(str(distribution.locate_file(first)))
            if source.is_dir():
                shutil.copytree(
                    source, packages / first, ignore=UNUSED, copy_function=link, dirs_exist_ok=True
                )
            elif source.exists():
                link(str(source), str(packages / first))
    shutil.copytree(ROOT / "src/holdfast", packages / "holdfast")
    (packages / "pyspark").symlink_to(spark_home())
    shutil.copy(spark_home() / "bin/spark-submit", directory / "bin")
    script = directory / "bin/holdfast"
    script.write_text(f"#!{directory}/bin/python\nfrom holdfast.cli.main import main\nmain()\n")
    script.chmod(0o755)


def needed() -> set[str]:
    """The distributions that Holdfast declares to need, and what they need."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found: set[str] = set()
    waiting = [Requirement(each).name for each in project["dependencies"]]
    while waiting:
        name = canonicalize_name(waiting.pop())
        if name not in found:
            found.add(name)
            declared = map(Requirement, importlib.metadata.requires(name) or ())
            waiting += [each.name for each in declared if each.marker is None or each.marker.evaluate()]
    return found


def link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def run(lines: str, directory: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """As a shell in that directory does."""
    others = {name: value for name, value in os.environ.items() if not name.startswith("PY")}
    spark = {"SPARK_HOME": str(spark_home()), "SPARK_LOCAL_IP": "127.0.0.1"}
    return subprocess.run(
        ["bash", "-ec", lines],
        cwd=directory,
        env={**others, **spark, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
