"""Jobs as they grow: what is varied, what the model makes of figures, and what gives way first."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from bench.scale import __main__ as command
from bench.scale import points, report
from bench.scale.job import job_of
from bench.scale.model import LIMITS, MODELS, Undetermined, fit, fit_all, foreseen, gives_way, grown
from bench.scale.points import CPUS, FULL, FULL_DEFAULT, QUICK, QUICK_DEFAULT, Point, axis
from holdfast.graph.validate import check

COSTS = {
    "epoch": 40.0,
    "operator": 12.0,
    "task": 3.0,
    "sink": 2.0,
    "by_core": 5.0,
    "row": 0.002,
    "key": 0.001,
}


def figures(point: Point) -> dict[str, Any]:
    """What would be measured, were the model right."""
    driver = COSTS["epoch"] + COSTS["operator"] * point.operators + COSTS["task"] * point.tasks
    rest = COSTS["sink"] * point.sinks + COSTS["by_core"] * point.tasks / point.cores
    rest += (COSTS["row"] * point.rows_of_operators + COSTS["key"] * point.keys_of_operators) / point.cores
    own = {
        "driver_cpu_ms": driver, "epoch_ms": driver + rest, "result_bytes": 1_000.0 * point.tasks,
        "commit_bytes": 500.0 + 200.0 * point.tasks, "files_per_epoch": 2.0 + point.tasks, "heap_mb": 80.0,
    }  # fmt: skip
    spread = {"epoch_ms_min": own["epoch_ms"] - 1, "epoch_ms_max": own["epoch_ms"] + 1}
    others = {name: 1.0 for name in report.FIGURES if name not in own}
    return {**asdict(point), **others, **own, **spread}


def all_figures() -> dict[str, list[dict[str, Any]]]:
    return {
        name: [figures(point) for point in axis(name, sizes, FULL_DEFAULT)] for name, sizes in FULL.items()
    }


def found() -> dict[str, Any]:
    about = {"machine": "2 cores", "started": "today", "load_before": 0.1, "settings": {}}
    return {"about": about, "usual": asdict(FULL_DEFAULT), "axes": all_figures(), "points": {}}


def test_an_axis_varies_one_thing_and_has_the_usual_point() -> None:
    for name, sizes in FULL.items():
        line = axis(name, sizes, FULL_DEFAULT)
        assert all(replace(point, **{name: getattr(FULL_DEFAULT, name)}) == FULL_DEFAULT for point in line)
        usual = FULL_DEFAULT.executors if name == "shards" else getattr(FULL_DEFAULT, name)
        assert usual in sizes
    assert QUICK.keys() == FULL.keys()


def test_every_job_can_be_declared(tmp_path: Path) -> None:
    for sizes, usual in ((FULL, FULL_DEFAULT), (QUICK, QUICK_DEFAULT)):
        for name in sizes:
            point = axis(name, sizes[name], usual)[-1]
            assert point.touched <= point.rows
            assert point.touched <= point.keys
            check(job_of(point, tmp_path, epochs=3).graph())


def test_the_model_finds_the_costs_that_the_figures_were_made_of() -> None:
    fits = fit_all([each for line in all_figures().values() for each in line])
    driver, rest = fits["driver_cpu_ms"], fits["rest_ms"]
    assert driver.costs["a task"] == pytest.approx(COSTS["task"])
    assert driver.costs["an operator"] == pytest.approx(COSTS["operator"])
    assert rest.costs["a task, by cores"] == pytest.approx(COSTS["by_core"])
    assert rest.costs["1,000 rows, by cores"] == pytest.approx(COSTS["row"] * 1_000)
    assert rest.costs["1,000 touched keys, by cores"] == pytest.approx(COSTS["key"] * 1_000)
    assert all(each.explained == pytest.approx(1.0) for each in fits.values())
    assert all(each.typical_residual < 1e-6 * max(each.measured) for each in fits.values())


def test_residuals_are_what_the_model_does_not_explain() -> None:
    results = [figures(point) for point in axis("shards", (2, 4, 8, 16), FULL_DEFAULT)]
    results[1]["result_bytes"] += 500
    found = fit("result_bytes", results)
    assert sum(found.residuals) == pytest.approx(0, abs=1e-6)
    assert max(found.residuals) == found.residuals[1]
    assert 0.9 < found.explained < 1.0


def test_there_is_no_model_of_too_few_figures() -> None:
    results = {"shards": [figures(point) for point in axis("shards", (2, 4), FULL_DEFAULT)]}
    with pytest.raises(Undetermined):
        fit_all(results["shards"])
    lines = report.model_lines({**found(), "axes": results})
    assert lines == ["there is no model of so few figures: it needs those of every axis."]
    assert "|" not in "".join(lines)
    quick = [figures(point) for name, sizes in QUICK.items() for point in axis(name, sizes, QUICK_DEFAULT)]
    assert fit_all(quick).keys() == MODELS.keys()


def test_a_larger_cluster_gets_more_rows_and_enough_key_groups() -> None:
    point = grown(FULL_DEFAULT, 1_000)
    assert (point.executors, point.groups, point.tasks) == (1_000, 4_096, 1_000)
    assert point.rows / 1_000 == FULL_DEFAULT.rows / FULL_DEFAULT.executors
    assert grown(FULL_DEFAULT, 4).groups == FULL_DEFAULT.groups


def test_the_driver_s_part_grows_with_executors_and_theirs_does_not() -> None:
    fits = fit_all([each for line in all_figures().values() for each in line])
    few, many = foreseen(fits, FULL_DEFAULT, 4), foreseen(fits, FULL_DEFAULT, 1_000)
    assert many["rest_ms"] == pytest.approx(few["rest_ms"])
    assert many["driver_cpu_ms"] - few["driver_cpu_ms"] == pytest.approx(996 * COSTS["task"])
    assert many["epoch_ms"] == pytest.approx(many["driver_cpu_ms"] + many["rest_ms"])


def test_what_gives_way_first_comes_first() -> None:
    fits = fit_all([each for line in all_figures().values() for each in line])
    order = gives_way(fits, FULL_DEFAULT)
    assert {target for target, _ in order} == {*LIMITS}
    # (1,000 - 40 - 12) / 3 ms for a task.
    assert order[0] == ("driver_cpu_ms", 316)
    assert order[1][0] == "files_per_epoch"
    assert order[1][1] == pytest.approx(3_498, abs=1)
    assert order[-1] == ("heap_mb", None)


def test_the_page_has_the_tables_the_model_and_what_they_mean(tmp_path: Path) -> None:
    report.write(found(), tmp_path)
    page = (tmp_path / "how-it-grows.md").read_text()
    assert "### By keys" in page
    assert "| 100,000,000 |" in page
    assert "What gives way first, with 31" in page
    for _, what in LIMITS.values():
        assert f"| {what} |" in page
    assert (tmp_path / report.PICTURE).exists()
    committed = (command.DOCS / "how-it-grows.md").read_text()
    assert report.HEAD in committed
    assert report.explanation() in committed


def test_models_are_of_what_can_be_had() -> None:
    assert {*LIMITS} <= {*MODELS}
    assert Point(executors=4 * CPUS).cores == CPUS


def test_points_that_were_measured_are_not_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, measured = tmp_path / "scale.json", []

    def measure(point: Point, warm_up: int, epochs: int) -> dict[str, Any]:
        measured.append(point)
        return figures(point)

    monkeypatch.setattr(command, "measure", measure)
    monkeypatch.setattr(command, "fits", lambda point: point.keys < 20_000)
    command.measure_all(["keys", "sinks"], quick=True, out=out)
    assert len(measured) == 2, "the usual point is on both axes, and the largest state has no room"
    again = command.measure_all(["keys", "groups"], quick=True, out=out)
    assert len(measured) == 3
    lengths = {name: len(line) for name, line in again["axes"].items()}
    assert (lengths["keys"], lengths["sinks"], lengths["groups"]) == (1, 2, 2)
    assert json.loads(out.read_text()) == again
    assert points.QUICK_DEFAULT in measured
