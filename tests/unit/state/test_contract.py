"""The version of a shard's state: one type in memory and in stored records."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.state.contract import Version


def test_a_version_is_stored_as_every_record_before_holds_it() -> None:
    version, stored = Version(3, 1, "r"), b'{"epoch":3,"attempt":1,"result":"r"}'
    assert msgspec.json.encode(version) == stored
    assert msgspec.json.decode(stored, type=Version) == version
    with pytest.raises(msgspec.ValidationError, match="unknown field"):
        msgspec.json.decode(b'{"epoch":3,"attempt":1,"result":"r","more":0}', type=Version)
