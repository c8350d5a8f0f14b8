"""Where a part begins whose state is in no file, and what is refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.checkpoint.chain.commits import Chain, Committed
from holdfast.checkpoint.chain.view import EMPTY, CheckpointView, news
from holdfast.checkpoint.store.records import OperatorSchema
from holdfast.errors import RestoreError
from holdfast.runtime.upstream import begins, gone_back, refuse_saved
from tests.unit.checkpoint.kept import OPERATOR, MemoryStorage, draft

SCHEMA = OperatorSchema(uid=OPERATOR, key=(), states=())


def context_of(chain: Chain, *uids: str, replays: bool = True) -> tuple[Any, list[str]]:
    said: list[str] = []
    graph = SimpleNamespace(operators=[SimpleNamespace(uid=uid) for uid in uids])
    context = SimpleNamespace(
        checkpoint=SimpleNamespace(chain=chain), program=SimpleNamespace(graph=graph), term=1, run="run-1",
        monitor=SimpleNamespace(say=said.append), settings=SimpleNamespace(replays_state=replays),
    )  # fmt: skip
    return context, said


def committed(chain: Chain, view: CheckpointView, record: Any) -> CheckpointView:
    done = chain.commit(view, record)
    assert isinstance(done, Committed)
    return done.view


@pytest.fixture
def chain() -> Chain:
    return Chain(MemoryStorage())


def open_windows(chain: Chain) -> CheckpointView:
    """Four epochs, of which the last two are in windows that are open."""
    record = news(EMPTY, term=1, run="run-1", published_through={})
    view = committed(chain, EMPTY, replace(record, needs_from=1, operators=(SCHEMA,)))
    for needs_from in (1, 2, 2, 3):
        view = committed(chain, view, replace(draft(view, deltas=()), staged=(), needs_from=needs_from))
    return view


def test_what_is_open_is_read_again_from_a_commit_before_it(chain: Chain) -> None:
    view = open_windows(chain)
    context, said = context_of(chain, OPERATOR)
    gone = gone_back(context, view)
    assert (gone.number, gone.last_epoch, gone.positions) == (view.number + 1, 2, {"in": 2})
    assert (gone.needs_from, gone.whole_after) == (3, 4)
    assert said[0].startswith("REPLAY: what is open after epoch 4 is read again, from epoch 3 on")
    assert gone_back(context, gone) is gone, "and not again"
    assert not begins(gone, context.settings)


def test_saved_state_is_not_read_again_and_not_given_up(chain: Chain) -> None:
    context, said = context_of(chain, OPERATOR)
    saved = committed(chain, EMPTY, draft(EMPTY))
    assert gone_back(context, saved) is saved
    with pytest.raises(
        RestoreError, match=r"'totals' is in this checkpoint, and hf.UpstreamBackup\(\) would"
    ):
        refuse_saved(context.program.graph, saved, context.settings)
    plain, _ = context_of(chain, OPERATOR, replays=False)
    refuse_saved(plain.program.graph, saved, plain.settings)
    assert not begins(saved, plain.settings)
    assert not said


def test_a_part_that_saves_its_state_from_now_on_reads_again_what_is_open(chain: Chain) -> None:
    context, _ = context_of(chain, "other", OPERATOR, replays=False)
    assert gone_back(context, open_windows(chain)).whole_after == 4


def test_an_operator_that_is_new_begins_with_nothing(chain: Chain) -> None:
    view = open_windows(chain)
    context, _ = context_of(chain, "new")
    assert gone_back(context, view) is view
    assert begins(view, context.settings)
    assert begins(EMPTY, context.settings)
