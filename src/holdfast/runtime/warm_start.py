"""What a standby has ready for the run that takes over.

Always true: nothing here decides. What a run is not given it makes itself, and what it is given it checks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.checkpoint.chain.view import CheckpointView
from holdfast.runtime.epoch.program import Program

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """`owner`: whose working state is used. `program`: compiled with `spark`. `view`: a commit that was
    followed.
    """

    owner: str = ""
    spark: SparkSession | None = None
    program: Program | None = None
    view: CheckpointView | None = None


NOTHING = Prepared()
