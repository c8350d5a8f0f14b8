"""How a part of a job survives the end of its node: named by the user, with one word.

Every part keeps checkpoints; a protection says what else is done while all is well, so that less is to be
done after a failure.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Rollback:
    """Checkpoint and replay: after a failure the part is started from its newest checkpoint, on any node."""


@dataclass(frozen=True)
class PassiveStandby:
    """A second node follows: Spark is started there, and its working state goes along with the commits. It
    takes over within about an epoch. A cluster with such a part needs hot standbys."""


Protection = Rollback | PassiveStandby
PROTECTIONS: tuple[type, ...] = (Rollback, PassiveStandby)
