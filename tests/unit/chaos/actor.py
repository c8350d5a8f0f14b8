"""Plays a job under chaos, without Spark: it leads, commits numbers, passes steps, and can be hurt like one.

    python tests/unit/chaos/actor.py DIRECTORY SETTINGS

The options of the settings say how many `commits` it makes, `ends_with` which code after the first, and
whether it `refuses` to make any.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path

from holdfast.chaos.inside.child import PARKED
from holdfast.chaos.inside.disturbances import CHECKPOINT, JumpingClock, become_driver
from holdfast.errors import FencedOut, StorageError, UnknownOutcome
from holdfast.steps import Step, reached
from holdfast.storage.urls import open_storage


def main() -> None:
    directory, options = Path(sys.argv[1]), json.loads(sys.argv[2])["options"]
    become_driver()
    os.environ.pop("HOLDFAST_STOP_AT", None)
    if own := os.environ.pop(PARKED, None):
        os.environ["HOLDFAST_STOP_AT"] = own
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    storage, clock = open_storage(str(directory / CHECKPOINT)), JumpingClock()
    term = len(storage.list("terms/")) + 1
    storage.put(f"terms/{term:012d}", b"")
    reached(Step.TERM_CLAIMED)
    if options.get("refuses"):
        sys.exit(StorageError.exit_code)
    while not stopping.wait(0.02):
        try:
            number = len(storage.list("commits/")) + 1
            # After it: whoever was stopped in between must not take its successor's end for its own.
            if len(storage.list("terms/")) > term:
                sys.exit(FencedOut.exit_code)
            if number > options["commits"]:
                return
            clock.now_ms()
            storage.put_new(f"commits/{number:012d}", str(options.get("parallelism")).encode())
            reached(Step.COMMIT_WRITTEN)
            if code := options.get("ends_with"):
                sys.stderr.write("error: as I was told\n")
                sys.exit(code)
        except UnknownOutcome:
            continue
        except StorageError:
            sys.exit(StorageError.exit_code)


if __name__ == "__main__":
    main()
