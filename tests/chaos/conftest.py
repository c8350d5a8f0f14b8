"""The Spark of the in-process tests is the one that tests/spark uses."""

from __future__ import annotations

from tests.spark.conftest import spark

__all__ = ["spark"]
