"""Holdfast with one safeguard taken away: a leader does not go on from the event time of the commits."""

from dataclasses import replace
from typing import Any

from holdfast.checkpoint.chain.view import CheckpointView
from holdfast.runtime.epoch.watermarks import Watermarks
from tests.chaos.jobs import windows

_init = Watermarks.__init__


def _forgetting(self: Watermarks, graph: Any, view: CheckpointView) -> None:
    _init(self, graph, replace(view, watermarks={}, event_times={}))


setattr(Watermarks, "__init__", _forgetting)  # noqa: B010

job = windows.job
