"""Holdfast with one safeguard taken away: recovery believes that whatever is committed was published, too."""

from holdfast.checkpoint.chain.view import CheckpointView
from holdfast.runtime.epoch import publisher
from holdfast.runtime.leader_context import LeaderContext
from tests.chaos.jobs import ledger

_init = publisher.Publishing.__init__


def _believing(self: publisher.Publishing, context: LeaderContext, view: CheckpointView) -> None:
    _init(self, context, view)
    self.through = dict.fromkeys(self.through, view.last_epoch)


setattr(publisher.Publishing, "__init__", _believing)  # noqa: B010

job = ledger.job
