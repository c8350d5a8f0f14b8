from __future__ import annotations

from unittest.mock import MagicMock

import pytest

from holdfast.connectors.files import source


@pytest.fixture
def no_spark(monkeypatch: pytest.MonkeyPatch) -> MagicMock:
    """A session that is never asked for rows: `frame` looks at its files, and that is all."""
    monkeypatch.setattr(source, "Sifter", MagicMock())
    monkeypatch.setattr(source, "spark_schema", MagicMock())
    return MagicMock()
