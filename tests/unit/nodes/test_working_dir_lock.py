"""Nodes on one machine keep their working state apart."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.errors import DefinitionError
from holdfast.nodes.working_dir_lock import take_owner


def test_nodes_that_are_up_have_different_names_and_a_name_that_is_free_is_used_again(tmp_path: Path) -> None:
    first, second = take_owner(str(tmp_path)), take_owner(str(tmp_path))
    assert first.name != second.name
    first.release()
    third = take_owner(str(tmp_path))
    assert third.name == first.name
    second.release()
    third.release()


def test_a_place_that_cannot_be_written_to_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DefinitionError, match="choose another --working-dir"):
        take_owner(str(tmp_path / "file"))
