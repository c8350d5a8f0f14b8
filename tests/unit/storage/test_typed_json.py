"""Types are learned one at a time, whichever threads ask first."""

from __future__ import annotations

import subprocess
import sys

import msgspec
import pytest

from holdfast.storage.typed_json import from_json, learn

FIRST_USE_BY_FOUR_THREADS = """
import sys, threading, types
from holdfast.storage.typed_json import from_json

sys.setswitchinterval(1e-6)
FIELD = "    f{}: dict[str, tuple[int, ...]] = msgspec.field(default_factory=dict)\\n"
FIELDS = "".join(map(FIELD.format, range(8)))
MORE = "".join(f"    a{n}: 'Inner | None' = None\\n    b{n}: tuple[Inner, ...] = ()\\n" for n in range(8))
INNER = "import msgspec\\nclass Inner(msgspec.Struct):\\n" + FIELDS
DECLARED = INNER + "class Outer(msgspec.Struct):\\n" + MORE

def read(kind, start):
    start.wait()
    assert from_json(b'{"a0": {"f0": {"x": [1]}}, "b3": [{}]}', kind).a0.f0 == {"x": (1,)}

for _ in range(100):
    module = sys.modules["fresh"] = types.ModuleType("fresh")
    exec(DECLARED, module.__dict__)
    start = threading.Barrier(4)
    threads = [threading.Thread(target=read, args=(module.Outer, start)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""


class Pair(msgspec.Struct):
    a: int
    b: str = ""


def test_what_fits_is_read_and_what_does_not_is_refused() -> None:
    assert from_json(b'{"a": 1}', learn(Pair)) == Pair(1)
    with pytest.raises(msgspec.DecodeError):
        from_json(b'{"a": "1"}', Pair)


def test_threads_that_read_a_type_first_at_once_do_not_end_the_process() -> None:
    """Without the lock this is a segmentation fault within the first few types."""
    command = [sys.executable, "-c", FIRST_USE_BY_FOUR_THREADS]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
