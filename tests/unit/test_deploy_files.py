"""The files of deploy/ name commands, options, places and settings that exist, and agree with one another."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from holdfast.cli.main import app
from holdfast.errors import HoldfastError, RetryableError
from holdfast.runtime.settings import RunSettings
from holdfast.runtime.spark_session import GOOD_SETTINGS

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
PAGE = (ROOT / "docs/how-to/deploy.md").read_text()
UNIT = (DEPLOY / "holdfast.service").read_text()
CONTAINERFILE = (DEPLOY / "Containerfile").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def manifests() -> list[Any]:
    return list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))


@pytest.fixture(scope="module")
def driver(manifests: list[Any]) -> Any:
    """The container of the Deployment."""
    (container,) = manifests[-1]["spec"]["template"]["spec"]["containers"]
    return container


def of_unit(key: str) -> str:
    (value,) = re.findall(rf"^{key}=(.*)$", UNIT, re.MULTILINE)
    return str(value)


def check_command(words: list[str]) -> None:
    """That it is one of `holdfast`, with options that it has."""
    assert Path(words[0]).name == "holdfast"
    told = CliRunner().invoke(app, [words[1], "--help"], env={"COLUMNS": "200"})
    assert told.exit_code == 0
    assert {word for word in words if word.startswith("--")} <= set(re.findall(r"--[a-z-]+", told.stdout))


def with_subclasses(kind: type[HoldfastError]) -> set[type[HoldfastError]]:
    return {kind}.union(*map(with_subclasses, kind.__subclasses__()))


def test_the_unit_runs_what_there_is_and_gives_a_stop_its_time() -> None:
    check_command(shlex.split(of_unit("ExecStart")))
    assert of_unit("KillMode") == "mixed"
    assert of_unit("TimeoutStopSec") == "2min"
    (stop_within,) = [each.default for each in fields(RunSettings) if each.name == "stop_within"]
    assert stop_within < 120


def test_the_unit_restarts_nothing_that_restarting_makes_no_better() -> None:
    known = {kind.exit_code for kind in with_subclasses(HoldfastError)}
    worth_it = {HoldfastError.exit_code, RetryableError.exit_code}
    assert set(map(int, of_unit("RestartPreventExitStatus").split())) == known - worth_it


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze here")
def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path: Path) -> None:
    here = tmp_path / "holdfast.service"
    here.write_text(UNIT.replace("/opt/job/env/bin/holdfast", sys.executable))
    done = subprocess.run(
        ["systemd-analyze", "verify", str(here)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_image_has_what_the_package_is_made_of() -> None:
    copied = [
        word
        for line in re.findall(r"^COPY (?!--from)(.*)$", CONTAINERFILE, re.MULTILINE)
        for word in line.split()[:-1]
    ]
    assert {"pyproject.toml", "src", PROJECT["readme"], *PROJECT["license-files"]} == set(copied)
    assert all((ROOT / name).exists() for name in copied)


def test_the_image_has_a_python_and_a_spark_that_suffice() -> None:
    (python,) = re.findall(r"^FROM python:(3\.\d+)-", CONTAINERFILE, re.MULTILINE)
    assert f"Programming Language :: Python :: {python}" in PROJECT["classifiers"]
    assert f"/lib/python{python}/site-packages/pyspark" in CONTAINERFILE
    (spark,) = re.findall(r"^ARG SPARK=(.+)$", CONTAINERFILE, re.MULTILINE)
    assert f"pyspark>={'.'.join(spark.split('.')[:2])}" in PROJECT["dependencies"]
    assert f"SPARK={spark}" in PAGE


def test_commands_and_extras_of_the_image_exist() -> None:
    check_command(["holdfast", "jvm-archive"])
    assert "RUN holdfast jvm-archive" in CONTAINERFILE
    for extras in re.findall(r"EXTRAS=\[(.+?)\]|holdfast\[(.+?)\]", CONTAINERFILE + PAGE):
        assert set("".join(extras).split(",")) <= PROJECT["optional-dependencies"].keys()


def test_the_driver_on_kubernetes_may_do_its_work_and_has_the_time_to_stop(manifests: list[Any]) -> None:
    account, role, binding, deployment = manifests
    pod = deployment["spec"]["template"]["spec"]
    assert pod["serviceAccountName"] == account["metadata"]["name"] == binding["subjects"][0]["name"]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert pod["terminationGracePeriodSeconds"] == 120
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert deployment["spec"]["selector"]["matchLabels"] == labels


def test_the_driver_on_kubernetes_starts_executors_of_its_own_image(driver: Any) -> None:
    check_command(driver["args"])
    names = [each["name"] for each in driver["env"]]
    (given,) = [each["value"] for each in driver["env"] if each["name"] == "PYSPARK_SUBMIT_ARGS"]
    # Kubernetes puts in only what was named before.
    assert set(re.findall(r"\$\((\w+)\)", given)) == set(names[: names.index("PYSPARK_SUBMIT_ARGS")])
    words = given.split()
    assert words[:2] == ["--master", "k8s://https://kubernetes.default.svc:443"]
    assert words[-1] == "pyspark-shell"
    assert settings_of(given)["spark.kubernetes.container.image"] == driver["image"]


def test_the_settings_are_the_same_everywhere(driver: Any) -> None:
    lines = (DEPLOY / "spark-defaults.conf").read_text().splitlines()
    defaults = dict(line.split() for line in lines if line and not line.startswith("#"))
    (given,) = [each["value"] for each in driver["env"] if each["name"] == "PYSPARK_SUBMIT_ARGS"]
    for found in (settings_of(given), settings_of(PAGE)):
        assert {key: value for key, value in found.items() if defaults.get(key, value) != value} == {}


def test_the_page_names_what_holdfast_sets_and_files_that_exist() -> None:
    for key, value in GOOD_SETTINGS.items():
        assert f"`{key}={value}`" in PAGE
    for link in re.findall(r"\]\(([^)#]+)", PAGE):
        assert (ROOT / "docs/how-to" / link).exists(), link


def settings_of(text: str) -> dict[str, str]:
    return dict(re.findall(r"--conf (spark\.[\w.]+)=(\S+)", text))
