"""How a node makes itself ready to take a seat. Spark is played."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import holdfast as hf
from holdfast.nodes import standby as module
from holdfast.nodes.job_on_node import JobOnNode
from holdfast.nodes.standby import Standby
from holdfast.testing.clocks import ManualClock


@pytest.mark.parametrize("same", [True, False])
def test_a_sink_that_refuses_keeps_no_node_of_the_same_code_from_standing_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, same: bool
) -> None:
    def compiled(graph: Any, spark: Any, have_been_shown: Callable[[], bool] = lambda: False) -> Any:
        if not have_been_shown():
            raise hf.DefinitionError("the sink does not take the columns")
        return SimpleNamespace(name=graph.name)

    def looked(graph: Any, storage: Any, settings: Any) -> bool:
        return same and (graph.name, storage.url) == ("orders", str(tmp_path))

    warm = threading.Event()
    for name, played in {
        "open_session": lambda name: object(), "run_in_background": lambda *given: None,
        "compile_graph": compiled, "is_of_same_code": looked, "warm_up": lambda *given: warm.set(),
        "default_parallelism": lambda spark: 1,
    }.items():  # fmt: skip
        monkeypatch.setattr(module, name, played)
    context: Any = SimpleNamespace(
        owner="here", clock=ManualClock(), registration=SimpleNamespace(standby="warm"),
        saying=lambda job: lambda text: said.append(text) or told.set(),
    )  # fmt: skip
    said, told = list[str](), threading.Event()
    standby = Standby(JobOnNode(hf.Job("orders"), str(tmp_path), {}), context)
    try:
        assert (warm if same else told).wait(30)
        assert standby.prepared.program == (SimpleNamespace(name="orders") if same else None)
        assert isinstance(standby.failure, hf.DefinitionError) is not same
    finally:
        standby.close()
