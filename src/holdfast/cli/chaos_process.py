"""The process that `holdfast chaos` starts and hurts: `chaos_process APP DIRECTORY SETTINGS`.

Exit codes are those of `holdfast run`.
"""

from __future__ import annotations

import argparse
import sys
import traceback
from pathlib import Path

import msgspec

from holdfast.chaos.inside.child import LifeSettings, live
from holdfast.cli.load_job import load_job
from holdfast.cli.options import tell
from holdfast.errors import HoldfastError


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("app", type=Path)
    parser.add_argument("directory", type=Path)
    parser.add_argument("settings", help="LifeSettings as JSON")
    parser.add_argument("--job")
    given = parser.parse_args()
    try:
        settings = msgspec.json.decode(given.settings, type=LifeSettings)
        live(load_job(given.app, given.job), given.directory, settings)
    except Exception as error:
        if not isinstance(error, HoldfastError):
            traceback.print_exc()
        sys.exit(tell(error))


if __name__ == "__main__":
    main()
