"""What made Spark give up, in one line: the cause, not the call that noticed it.

Spark tells of a failure in the task by a Java exception whose text holds the chain of its causes, by an error
with a condition (SQL), or by the traceback of a Python worker. Only texts are read here: they are all that
Spark Connect has too.
Always true: the reason of a lost process, executor or session says that it was lost, and is marked as
outside: no epoch is to blame for it. Words in a user's own message never count as such a loss.
Never here: whether it is tried again (see restarts).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from holdfast import errors
from holdfast.errors import HoldfastError, MachineError, first_line
from holdfast.tasks.messages import Failure

REASON_CHARS_MAX = 1_500


@dataclass(frozen=True)
class SparkFailure:
    """`outside`: something that the job needs was lost or not to be had; its input is not at fault.
    `vanished`: a task found that what it was to read is gone, and says which; empty: none did.
    `lacking`: the executors lack a part of the job's environment, which trying again does not bring."""

    reason: str
    outside: bool = False
    vanished: str = ""
    lacking: bool = False


_OUTSIDE_PYTHON = re.compile(
    r"holdfast\.[a-z_.]+\.(StorageError|StorageRefused|UnknownOutcome|StaleWorkingState|RetryableError"
    r"|Unavailable)\b"
    r"|(ConnectionError|ConnectionRefusedError|ConnectionResetError|BrokenPipeError|TimeoutError)\b"
    r"|OSError: \[Errno 28\]"
)
"""How the last line of a Python traceback begins where the code met what was not to be had."""

_VANISHED = "holdfast.errors.InputVanished: "
_MACHINE = "holdfast.errors.MachineError: "

_LACKS = (
    (
        r"(?:.*Error from python .*)?ModuleNotFoundError: No module named '([\w.]+)'",
        "have no Python module {}",
    ),
    (r"\S*ImportError: \[\w*PACKAGE\w*\] (.+)", "lack a Python package ({})"),
    (r'IOException: Cannot run program "([^"]+)".* error=(?:2|13), ', "cannot start their Python, {}"),
    (r"\S*: \[PYTHON_VERSION_MISMATCH\] (.+?), PySpark .*", "have another Python ({})"),
)
"""How a failure begins where the executors lack a part of the job's environment, and what they lack."""
_REMEDY = (
    "give them the environment that the driver has (--archives and PYSPARK_PYTHON), and modules of your own "
    "by --py-files; see docs/how-to/deploy.md"
)

_TASK_FAILED = re.compile(
    r"Job aborted due to stage failure: .*? Lost task \S+ in stage \S+ \(TID \d+\) \(\S+ executor \S+\): "
)
_LOST = (
    (r"Python worker (?:exited|failed)", "a Python worker was killed (out of memory?)"),
    (r"ExecutorLostFailure .*?Reason: (.*)", "an executor was lost"),
    (r"((?:OutOfMemoryError|\[UNABLE_TO_ACQUIRE_MEMORY\]).*)", "an executor ran out of memory"),
    (r"IOException: (No space left on device)", "a disk of an executor is full"),
    (r"((?:Metadata)?FetchFailed.*)", "rows on their way between executors were lost"),
    (
        r"Job aborted due to stage failure: .*has failed the maximum allowable number of times",
        "rows on their way between executors were lost",
    ),
    (r"(?:\[SPARK_JOB_CANCELLED\] )?Job \d+ cancelled because SparkContext", "the Spark session ended"),
    (r"IllegalStateException: .*SparkContext", "the Spark session ended"),
    (r"((?:\[SPARK_JOB_CANCELLED\]|Job \d+ cancelled).*)", "the job was cancelled in Spark"),
)
"""How a throwable begins where a part of Spark is lost, and what that means; a group is told with it."""

_GIVEN_UP = re.compile(
    r"Spark context stopped while waiting for backend|stopped SparkContext|on a running MetricsSystem"
    r"|All masters are unresponsive"
)
"""A standalone master is tried for a minute. Then Spark stops the context that it is making, and fails at
whatever it does with that."""
_NO_CONNECTION = re.compile(
    r"\b(?:Connect|UnknownHost|NoRouteToHost|SocketTimeout|ConnectTimeout)Exception\b"
    r"|failed to connect to all addresses"
)

_SESSION_CONDITIONS = ("SESSION_OR_CONTEXT_NOT_EXISTS", "INVALID_HANDLE.SESSION_CLOSED")

_THROWABLE = re.compile(r"(?:: |Caused by: )?(?P<kind>[A-Za-z_][\w$]*(?:\.[\w$]+)+)(?:: (?P<said>.*))?")
_FRAME = re.compile(r"\s+(at |\.\.\. \d+ )|Driver stacktrace:")
_SQLSTATE = re.compile(r"\s+SQLSTATE: \w+.*")


def explained(failure: Exception) -> SparkFailure:
    """The cause of an error that Spark, or the connection to it, raised on the driver."""
    from py4j.protocol import Py4JError, Py4JNetworkError
    from pyspark.errors import PySparkException

    text = str(failure)
    if isinstance(failure, Py4JNetworkError | EOFError) or _is_connection(failure):
        return SparkFailure(f"the connection to Spark was lost ({first_line(failure)})", outside=True)
    if not isinstance(failure, Py4JError | PySparkException):
        return SparkFailure(_shortened(first_line(failure)))
    if "Traceback (most recent call last)" in text:
        raised = _shortened(_last_of_traceback(text))
        if raised.startswith(_VANISHED):
            return SparkFailure(raised, vanished=raised.removeprefix(_VANISHED))
        if raised.startswith(_MACHINE):
            return SparkFailure(_of_executors(raised.removeprefix(_MACHINE)), lacking=True)
        return _lacked(raised) or SparkFailure(raised, _OUTSIDE_PYTHON.match(raised) is not None)
    chain = _chain(text)
    if isinstance(failure, PySparkException) and (failure.getCondition() or not chain):
        ended = failure.getCondition() in _SESSION_CONDITIONS
        return SparkFailure(_shortened(_SQLSTATE.sub("", first_line(failure))), outside=ended)
    known = next(filter(None, map(_lost, chain)), None) or next(filter(None, map(_lacked, chain)), None)
    return known or SparkFailure(_shortened("; caused by ".join(chain) or first_line(failure)))


def raised_by_task(failure: Failure) -> HoldfastError:
    """An error that a task has told, as it is told on the driver: a machine that lacks something is an
    executor."""
    error: HoldfastError = getattr(errors, failure.kind)(*failure.args)
    return MachineError(_of_executors(str(error))) if isinstance(error, MachineError) else error


def no_cluster(failure: Exception) -> str:
    """Why there is no Spark session, if that is because its cluster does not answer; empty: it is not."""
    text = str(failure)
    if _GIVEN_UP.search(text):
        return "Spark has tried, and given up"
    lines = [*_chain(text), first_line(failure)]
    return _shortened(next(filter(_NO_CONNECTION.search, lines), ""))


def _is_connection(failure: Exception) -> bool:
    return isinstance(failure, ConnectionError | TimeoutError)


def _lost(said: str) -> SparkFailure | None:
    for sign, meaning in _LOST:
        match = re.match(sign, said)
        if match is not None:
            told = f"{meaning}: {match[1]}" if match.re.groups else meaning
            return SparkFailure(_shortened(told), outside=True)
    return None


def _lacked(said: str) -> SparkFailure | None:
    for sign, meaning in _LACKS:
        match = re.match(sign, said)
        if match is not None:
            lacks = meaning.format(_shortened(match[1]))
            return SparkFailure(f"the executors {lacks}; {_REMEDY}", lacking=True)
    return None


def _of_executors(said: str) -> str:
    return f"the executors lack something: {said}; {_REMEDY}"


def _chain(text: str) -> list[str]:
    """What every throwable of a Java stack trace says, outermost first, each once.

    Spark repeats the trace of a task within the text of the failure of its job; where the task ran says
    nothing of the cause.
    """
    found: list[str] = []
    within = False
    for line in text.splitlines():
        match = _THROWABLE.fullmatch(line)
        if match is not None:
            within = True
            found.append(_said(match["kind"], match["said"] or ""))
        elif _FRAME.match(line) is not None or not line.strip():
            within = False
        elif within and "Parse Mode: " not in line:
            found[-1] += f" {line.strip()}"
    distinct = dict.fromkeys(_SQLSTATE.sub("", said).strip() for said in found)
    return [said for said in distinct if said]


def _said(kind: str, text: str) -> str:
    bare = _TASK_FAILED.sub("", text)
    inner = _THROWABLE.fullmatch(bare) if bare != text else None
    if inner is not None:
        kind, bare = inner["kind"], inner["said"] or ""
    simple = kind.rsplit(".", 1)[-1]
    # Conditions of Spark's own errors say more than the name of their class.
    if bare.startswith("[") or (simple == "SparkException" and bare):
        return bare
    return f"{simple}: {bare}" if bare else simple


def _last_of_traceback(text: str) -> str:
    """What was raised: from the end of the last frame of the last traceback on, in one line."""
    lines = text[text.rindex("Traceback (most recent call last)") :].splitlines()[1:]
    framed = max((number for number, line in enumerate(lines) if line.startswith("  File ")), default=-1)
    rest = lines[framed + 1 :]
    while rest and rest[0].startswith("    "):
        rest.pop(0)
    raised: list[str] = []
    for line in rest:
        if _FRAME.match(line) is not None or not line.strip():
            break
        raised.append(line.strip())
    return " ".join(raised) or first_line(Exception(text))


def _shortened(text: str) -> str:
    return text if len(text) <= REASON_CHARS_MAX else f"{text[: REASON_CHARS_MAX - 3]}..."
