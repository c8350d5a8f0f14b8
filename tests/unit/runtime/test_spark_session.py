from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.errors import DefinitionError
from holdfast.runtime.spark_session import require_java


def test_missing_java_is_one_line_with_the_command_to_install_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DefinitionError, match="apt-get install openjdk-17") as error:
        require_java()
    assert "\n" not in str(error.value)


def test_a_wrong_java_home_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    with pytest.raises(DefinitionError, match=r"JAVA_HOME=.*nowhere"):
        require_java()
