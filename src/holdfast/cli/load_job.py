"""A user's file turned into a job, without running the part of it under `if __name__ == "__main__"`.

The file is loaded as a module that is taken out of `sys.modules` again. What it defines is then of no
importable module, so Spark ships it to the workers by value, exactly as it does for a script's `__main__`.
Modules beside the file are found as when it is run as a script: its directory leads `sys.path`, and workers
that Spark starts on this machine inherit it through PYTHONPATH.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.machinery import SourceFileLoader
from pathlib import Path
from traceback import FrameSummary, extract_tb
from types import ModuleType
from typing import NoReturn

from holdfast.errors import DefinitionError, HoldfastError
from holdfast.runtime.job import Job

MODULE_NAME = "holdfast_app"


def load_jobs(file: Path, names: Sequence[str] = ()) -> list[Job]:
    """The jobs that `file` declares, or those of them that are named."""
    found = _declared(file)
    known = {job.name: job for job in found}
    if len(known) < len(found):
        raise DefinitionError(f"{file} declares several jobs of one name; give each a name of its own")
    if unknown := [name for name in names if name not in known]:
        raise DefinitionError(
            f"{file} declares no job named {unknown[0]!r}; it has {', '.join(sorted(known))}"
        )
    return [known[name] for name in dict.fromkeys(names)] or found


def load_job(file: Path, name: str | None = None) -> Job:
    """The one job that `file` declares, or the one called `name`."""
    found = load_jobs(file, () if name is None else (name,))
    if len(found) > 1:
        names = ", ".join(sorted(job.name for job in found))
        raise DefinitionError(f"{file} declares {len(found)} jobs ({names}); choose one with --job NAME")
    return found[0]


def _declared(file: Path) -> list[Job]:
    jobs = {id(value): value for value in vars(load_module(file)).values() if isinstance(value, Job)}
    if not jobs:
        raise DefinitionError(f"{file} declares no job; assign one to a variable: job = hf.Job('name')")
    return list(jobs.values())


class AsWritten(SourceFileLoader):
    """Compiles what is in the file now. Compiled files are kept by size and second: one that was changed
    quickly would run as it was before."""

    def path_stats(self, path: str) -> NoReturn:
        raise OSError("no compiled file is looked for or kept")


def load_module(file: Path) -> ModuleType:
    """Execute `file` under a name that is not `__main__`."""
    if not file.is_file():
        raise DefinitionError(f"there is no file {file}; give the Python file that declares the job")
    _find_neighbours(file.resolve().parent)
    spec = importlib.util.spec_from_file_location(MODULE_NAME, file.resolve())
    if spec is None or not isinstance(spec.loader, SourceFileLoader):
        raise DefinitionError(f"{file} is not a Python file; give one whose name ends in .py")
    spec.loader = AsWritten(MODULE_NAME, str(file.resolve()))
    module = importlib.util.module_from_spec(spec)
    # There while it runs, because dataclasses and typing look up the module of what is being defined.
    sys.modules[MODULE_NAME] = module
    try:
        spec.loader.exec_module(module)
    except DefinitionError as wrong:
        raise _placed(file, wrong) from wrong.__cause__
    except HoldfastError:
        raise
    except Exception as cause:
        raise DefinitionError(
            f"{file} failed while it was loaded{_line(file, cause)}: {type(cause).__name__}: {cause}; mend it"
        ) from cause
    finally:
        del sys.modules[MODULE_NAME]
    return module


def _find_neighbours(directory: Path) -> None:
    if str(directory) not in sys.path:
        sys.path.insert(0, str(directory))
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    if str(directory) not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([str(directory), *paths])


def _line(file: Path, cause: Exception) -> str:
    if isinstance(cause, SyntaxError):
        return ""  # its own text says where
    frames = _frames(file, cause)
    return f" (line {frames[-1].lineno})" if frames else ""


def _frames(file: Path, cause: Exception) -> list[FrameSummary]:
    """The lines of the file that an error passed, the innermost one last."""
    return [frame for frame in extract_tb(cause.__traceback__) if frame.filename == str(file.resolve())]


def _placed(file: Path, wrong: DefinitionError) -> DefinitionError:
    """What was refused at once, with the line and the class that it is declared in."""
    frames = _frames(file, wrong)
    if type(wrong) is not DefinitionError or not frames or str(wrong).startswith(f"{file.name}:"):
        return wrong
    inside = "" if frames[-1].name == "<module>" else f" {frames[-1].name}"
    return DefinitionError(f"{file.name}:{frames[-1].lineno}{inside}: {wrong}")
