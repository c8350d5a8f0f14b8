"""`holdfast checkpoints`, as a shell sees it."""

from __future__ import annotations

import pytest

from holdfast.admin import brief_term
from holdfast.checkpoint.chain.terms import record_ending
from holdfast.checkpoint.store.records import EndedRecord
from tests.unit.cli.shell import call, refusal, text
from tests.unit.inspect.stored import MadeCheckpoint


def test_commits_are_listed_with_what_they_hold(made: MadeCheckpoint) -> None:
    first, second = call("checkpoints", "list", "--checkpoint", made.url)
    assert (first["commit"], first["last_epoch"], first["files"], first["retained"]) == (1, 1, 4, True)
    assert second["bytes"] == sum(delta.extent.length for delta in made.chain.record(2).deltas)
    assert second["pinned_by"] == []
    assert "commits in" in text("checkpoints", "list", "--checkpoint", made.url)


def test_one_commit_is_shown_whole(made: MadeCheckpoint) -> None:
    (shown,) = call("checkpoints", "show", "2", "--checkpoint", made.url)
    assert shown["record"]["number"] == 2
    assert shown["checkpoint"]["positions"] == {"in": 2}
    told = text("checkpoints", "show", "2", "--checkpoint", made.url)
    assert "total: value of long" in told
    assert "after commit 1" in told


def test_verify_names_what_is_damaged_and_ends_with_5(made: MadeCheckpoint) -> None:
    (whole,) = call("checkpoints", "verify", "--checkpoint", made.url)
    assert (whole["commit"], whole["damage"], whole["restorable"]) == (2, [], True)
    name = made.chain.record(2).deltas[0].extent.object
    path = made.storage.local_path(name)
    assert path is not None
    path.write_bytes(path.read_bytes()[:-1])
    (found,) = call("checkpoints", "verify", "--checkpoint", made.url, code=5)
    assert len(found["damage"]) == 1
    assert name in found["damage"][0]
    assert not found["restorable"]
    assert call("checkpoints", "verify", "1", "--checkpoint", made.url)[0]["commit"] == 1
    assert "cannot be restored" in text("checkpoints", "verify", "--checkpoint", made.url, code=5)


def test_a_damaged_commit_record_is_listed_and_verified_as_such(made: MadeCheckpoint) -> None:
    path = made.storage.local_path("commits/000000000002")
    assert path is not None
    path.write_bytes(path.read_bytes().replace(b'"rows":10', b'"rows":11'))
    first, second = call("checkpoints", "list", "--checkpoint", made.url)
    assert "damage" not in first
    assert "commits/000000000002" in second["damage"]
    assert "damaged" in text("checkpoints", "list", "--checkpoint", made.url)
    (found,) = call("checkpoints", "verify", "--checkpoint", made.url, code=5)
    assert (found["commit"], found["restorable"]) == (2, False)
    assert "commits/000000000002" in found["damage"][0]


def test_a_commit_that_is_not_there_names_those_that_are(made: MadeCheckpoint) -> None:
    for command in ("show", "verify"):
        error = refusal("checkpoints", command, "99", "--checkpoint", made.url, code=4)
        assert f"there is no commit 99 in {made.url}; there are 1 to 2" in error


def test_prune_says_what_it_did(made: MadeCheckpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(brief_term, "ANSWER_SECONDS", 0.0)
    made.commit({("u3", 3): {"total": 1}})
    record_ending(
        made.storage,
        EndedRecord(term=1, run="r", at_ms=0, ending="stopped", commit=1, last_epoch=1, published=True),
    )
    (would,) = call("checkpoints", "prune", "--keep", "2", "--dry-run", "--checkpoint", made.url)
    assert (would["given_up"], would["newest"]) == ([1], 3)
    assert "commits 1 to 1 would be given up" in text(
        "checkpoints", "prune", "--keep", "2", "--dry-run", "--checkpoint", made.url
    )
    (done,) = call("checkpoints", "prune", "--keep", "2", "--checkpoint", made.url)
    assert done["newest"] == 5
