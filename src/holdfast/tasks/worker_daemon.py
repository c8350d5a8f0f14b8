"""The process that Spark forks its Python workers from, with what tasks need imported before the first fork.

Spark runs it in the place of its own (`spark.python.daemon.module`) where it surely finds Holdfast: with a
local master. It does the same after the imports. A worker then begins with them, instead of making them while
its first task waits.
"""

from __future__ import annotations

import importlib
import runpy
import sys

NEEDED = ("pyarrow.compute", "holdfast.tasks.keyed", "holdfast.tasks.unkeyed")


def main() -> None:
    # Spark puts its archive of PySpark first. What comes from an archive is compiled again by every process;
    # the same modules in a directory are compiled once.
    sys.path.sort(key=lambda place: place.endswith("pyspark.zip"))
    for name in NEEDED:
        importlib.import_module(name)
    runpy.run_module("pyspark.daemon", run_name="__main__")


if __name__ == "__main__":
    main()
