"""Manifests, sweeps and snapshots every few epochs: a short run then passes every step that there is.

Only how often things happen changes, never what happens.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from holdfast.checkpoint.chain import checkpoint, commits, retention
from holdfast.runtime.epoch import snapshotter

MANIFEST_EVERY = 3
SWEEP_EVERY = 1
DELTAS_MIN = 3


@contextmanager
def tightened() -> Iterator[None]:
    """While this lasts, in this process."""
    often: list[tuple[Any, str, Any]] = [
        (checkpoint, "Chain", partial(commits.Chain, manifest_every=MANIFEST_EVERY)),
        (checkpoint, "Retention", partial(retention.Retention, sweep_every=SWEEP_EVERY)),
        (snapshotter, "DELTAS_MIN", DELTAS_MIN),
    ]
    usual = [(module, name, getattr(module, name)) for module, name, _ in often]
    try:
        for module, name, value in often:
            setattr(module, name, value)
        yield
    finally:
        for module, name, value in usual:
            setattr(module, name, value)
