"""How a job is to be run: the arguments of `run` and `start`, checked, as one frozen value."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

from holdfast.clock import duration_ms
from holdfast.errors import DefinitionError
from holdfast.graph.guarantees import Guarantee

EPOCH_TARGET_SECONDS = 1.0
"""What the adaptive epoch size aims at: small enough to be prompt, large enough to drown the fixed cost."""
E = TypeVar("E", bound=StrEnum)
POLL_SECONDS = 0.05
"""How long to wait before asking the sources again when nothing was new."""


class Until(StrEnum):
    """When a run ends by itself."""

    STOPPED = "stopped"
    EXHAUSTED = "exhausted"


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """Checked settings of one run. Durations in seconds."""

    checkpoint: str
    guarantee: Guarantee
    until: Until
    checkpoint_interval: float
    epoch_interval: float
    parallelism: int | None
    key_groups: int
    backend: str
    max_rows_per_epoch: int | None
    retain: int
    working_dir: str


def check_settings(
    *,
    checkpoint: str | Path,
    guarantee: str,
    until: str,
    checkpoint_interval: str | None,
    epoch_interval: str | None,
    parallelism: int | None,
    key_groups: int,
    backend: str,
    max_rows_per_epoch: int | None,
    retain: int,
    working_dir: str | Path | None,
) -> RunSettings:
    """Refuse settings that cannot be meant, all before Spark starts."""
    if not str(checkpoint):
        raise DefinitionError("no checkpoint was given; say where to keep it: run(checkpoint='ck/')")
    if not 1 <= key_groups <= 32_768:
        raise DefinitionError(f"key_groups={key_groups} is out of range; choose a number from 1 to 32768")
    if parallelism is not None and not 1 <= parallelism <= key_groups:
        raise DefinitionError(
            f"parallelism={parallelism} is out of range; choose a number from 1 to key_groups ({key_groups})"
        )
    if max_rows_per_epoch is not None and max_rows_per_epoch < 1:
        raise DefinitionError(
            f"max_rows_per_epoch={max_rows_per_epoch} admits nothing; choose a number from 1 on"
        )
    if retain < 2:
        raise DefinitionError(f"retain={retain} keeps too little to go back to; choose a number from 2 on")
    return RunSettings(
        checkpoint=str(checkpoint),
        guarantee=_choice(Guarantee, "guarantee", guarantee),
        until=_choice(Until, "until", until),
        checkpoint_interval=duration_ms(checkpoint_interval) / 1_000 if checkpoint_interval else 0.0,
        epoch_interval=duration_ms(epoch_interval) / 1_000 if epoch_interval else 0.0,
        parallelism=parallelism,
        key_groups=key_groups,
        backend=backend,
        max_rows_per_epoch=max_rows_per_epoch,
        retain=retain,
        # Workers have other current directories than the driver.
        working_dir=str(Path(working_dir or _default_working_dir()).absolute()),
    )


def _choice(kind: type[E], name: str, value: str) -> E:
    try:
        return kind(value)
    except ValueError:
        choices = ", ".join(repr(str(choice)) for choice in kind)
        raise DefinitionError(f"{name}={value!r} is not known; choose one of {choices}") from None


def _default_working_dir() -> Path:
    return Path(
        os.environ.get("HOLDFAST_WORKING_DIR") or Path(tempfile.gettempdir()) / f"holdfast-{os.getuid()}"
    )
