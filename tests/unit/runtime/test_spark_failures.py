"""What made Spark give up, read from the texts that Spark 4.2 gave."""

from __future__ import annotations

import pytest
from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import AnalysisException, PySparkRuntimeError, PythonException

from holdfast.errors import CorruptionError, MachineError
from holdfast.runtime.spark_failures import REASON_CHARS_MAX, explained, raised_by_task
from holdfast.tasks.messages import Failure

AT = (
    "\n\tat org.apache.spark.sql.execution.datasources.FileScanRDD$$anon$1.hasNext(FileScanRDD.scala:153)"
    "\n\tat java.base/java.lang.Thread.run(Thread.java:840)"
)
LOST = (
    "An error occurred while calling o{call}.collectToPython.\n: org.apache.spark.SparkException: Job "
    "aborted due to stage failure: Task 1 in stage {call}.0 failed 4 times, most recent failure: Lost task "
    "1.3 in stage {call}.0 (TID {call}) (192.0.2.{call} executor {call}): "
)
CRASHED = (
    "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed). Consider setting "
    "'spark.python.worker.faulthandler.enabled' configuration to 'true' for the better Python traceback."
)
FILE = (
    "org.apache.spark.SparkException: [FAILED_READ_FILE.NO_HINT] Encountered error while reading file "
    "file:///in/bad%20{number}.json.  SQLSTATE: KD001"
)
MALFORMED = (
    "Caused by: org.apache.spark.SparkException: [MALFORMED_RECORD_IN_PARSING.WITHOUT_SUGGESTION] Malformed "
    "records are detected in record parsing: [u1,null].\nParse Mode: FAILFAST. To process malformed records "
    "as null result, try setting the option 'mode' as 'PERMISSIVE'.  SQLSTATE: 22023"
)
TOKEN = (
    "Caused by: com.fasterxml.jackson.core.JsonParseException: Unrecognized token 'oops': was expecting "
    "(JSON String, Number)\n at [Source: UNKNOWN; line: 1, column: 7]"
)
TRACEBACK = (
    "An exception was thrown from the Python worker:\nTraceback (most recent call last):\n"
    '  File "/app/job.py", line 37, in bad\n    return 1 // (x - 5)\n           ~~^^~~~~~~~~\n{raised}'
)
NO_PYARROW = "[PACKAGE_NOT_INSTALLED] PyArrow >= 18.0.0 must be installed; however, it was not found."
OTHER_PYTHON = (
    "[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.12 than that in driver: 3.11, "
    "PySpark cannot run with different minor versions.\nPlease check environment variables PYSPARK_PYTHON "
    "and PYSPARK_DRIVER_PYTHON are correctly set.\n"
)
NO_PYTHON = (
    'java.io.IOException: Cannot run program "./environment/bin/python": error=2, No such file or directory'
    f"{AT}\nCaused by: java.io.IOException: error=2, No such file or directory{AT}\n\t... 18 more\n"
)
NO_DAEMON = (
    "org.apache.spark.SparkException: \nError from python worker:\n  /usr/bin/python3: Error while finding "
    "module specification for 'holdfast.tasks.worker_daemon' (ModuleNotFoundError: No module named "
    f"'holdfast')\nPYTHONPATH was:\n  /opt/spark.zip{AT}"
)


def killed(call: int, ending: str) -> Py4JError:
    """As Spark tells it: the task's trace within the job's, and once more as its cause."""
    said = (
        f"{LOST.format(call=call)}{CRASHED}{AT}\nCaused by: {ending}\n\t... 21 more\n\nDriver stacktrace:{AT}"
    )
    return Py4JError(f"{said}\nCaused by: {CRASHED}{AT}\nCaused by: {ending}\n\t... 21 more\n")


def unreadable(number: int, call: int = 63) -> Py4JError:
    called = f"An error occurred while calling o{call}.collectToPython.\n: {FILE.format(number=number)}{AT}"
    return Py4JError(f"{called}\n{MALFORMED}{AT}\n\t... 23 more\n{TOKEN}{AT}\n\t... 29 more\n")


def test_a_malformed_line_is_told_with_its_file_its_record_and_what_is_wrong_with_it() -> None:
    found = explained(unreadable(1))
    assert found.reason == (
        "[FAILED_READ_FILE.NO_HINT] Encountered error while reading file file:///in/bad%201.json.; caused by "
        "[MALFORMED_RECORD_IN_PARSING.WITHOUT_SUGGESTION] Malformed records are detected in record parsing: "
        "[u1,null].; caused by JsonParseException: Unrecognized token 'oops': was expecting "
        "(JSON String, Number)"
    )
    assert not found.outside
    assert explained(unreadable(1, call=99)) == found
    assert explained(unreadable(2)) != found


def test_in_a_cluster_the_reason_is_that_of_the_task() -> None:
    inner = f"{FILE.format(number=1)}{AT}\n{MALFORMED}{AT}\n{TOKEN}{AT}"
    found = explained(
        Py4JError(f"{LOST.format(call=7)}{inner}\n\nDriver stacktrace:{AT}\nCaused by: {inner}")
    )
    assert found == explained(unreadable(1))


def test_a_worker_that_was_killed_is_told_as_such_and_is_no_fault_of_the_epoch() -> None:
    found = explained(killed(2, "java.io.EOFException"))
    assert found.reason == "a Python worker was killed (out of memory?)"
    assert found.outside
    assert explained(killed(9, "java.net.SocketException: Connection reset")) == found


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            LOST.format(call=6)
            + "ExecutorLostFailure (executor 6 exited caused by one of the running tasks) "
            "Reason: Command exited with code 137\nDriver stacktrace:" + AT,
            "an executor was lost: Command exited with code 137",
        ),
        (
            LOST.format(call=6) + "java.lang.OutOfMemoryError: Java heap space" + AT,
            "an executor ran out of memory: OutOfMemoryError: Java heap space",
        ),
        (
            LOST.format(call=6) + "java.io.IOException: No space left on device" + AT,
            "a disk of an executor is full: No space left on device",
        ),
        (
            "An error occurred while calling o5.collectToPython.\n: org.apache.spark.SparkException: Job 4 "
            "cancelled because SparkContext was shut down" + AT,
            "the Spark session ended",
        ),
        (
            "An error occurred while calling o5.sql.\n: java.lang.IllegalStateException: Cannot call methods "
            "on a stopped SparkContext." + AT,
            "the Spark session ended",
        ),
    ],
)
def test_what_spark_lost_is_told_and_is_outside(text: str, reason: str) -> None:
    found = explained(Py4JError(text))
    assert (found.reason, found.outside) == (reason, True)


@pytest.mark.parametrize(
    "failure", [Py4JNetworkError("Answer from Java side is empty"), ConnectionRefusedError(111, "refused")]
)
def test_a_java_side_that_is_gone_is_outside(failure: Exception) -> None:
    assert explained(failure).outside
    assert "the connection to Spark was lost" in explained(failure).reason


def test_a_session_that_was_stopped_is_outside() -> None:
    failure = PySparkRuntimeError(errorClass="SESSION_OR_CONTEXT_NOT_EXISTS", messageParameters={})
    assert explained(failure).outside


@pytest.mark.parametrize(
    ("raised", "reason", "outside"),
    [
        ("ZeroDivisionError: division by zero\n", "ZeroDivisionError: division by zero", False),
        ("job.Odd: strange\n", "job.Odd: strange", False),
        ("MemoryError\n", "MemoryError", False),
        ("ValueError: first\nsecond: line\n  third\n", "ValueError: first second: line third", False),
        ("ValueError: No space left on device\n", "ValueError: No space left on device", False),
        ("holdfast.errors.StorageError: cannot write\n", "holdfast.errors.StorageError: cannot write", True),
        ("OSError: [Errno 28] No space left\n", "OSError: [Errno 28] No space left", True),
        (
            "KeyError: 1\n\nDuring handling of the above exception, another exception occurred:\n\nTraceback "
            '(most recent call last):\n  File "x.py", line 1, in f\n    g()\nRuntimeError: wrapped\n',
            "RuntimeError: wrapped",
            False,
        ),
    ],
)
def test_python_code_is_told_by_what_it_raised(raised: str, reason: str, outside: bool) -> None:
    found = explained(PythonException(TRACEBACK.format(raised=raised)))
    assert (found.reason, found.outside) == (reason, outside)


def test_a_task_that_found_its_input_gone_says_which() -> None:
    gone = PythonException(TRACEBACK.format(raised="holdfast.errors.InputVanished: offsets 4 to 6 of t-0"))
    assert explained(gone).vanished == "offsets 4 to 6 of t-0"
    told = PythonException(TRACEBACK.format(raised="ValueError: holdfast.errors.InputVanished: no"))
    assert not explained(told).vanished


@pytest.mark.parametrize(
    ("text", "lacks"),
    [
        (
            TRACEBACK.format(raised="ModuleNotFoundError: No module named 'holdfast'\n"),
            "the executors have no Python module holdfast",
        ),
        (
            TRACEBACK.format(raised="pyspark.errors.exceptions.base.PySparkImportError: " + NO_PYARROW),
            f"the executors lack a Python package ({NO_PYARROW.partition('] ')[2]})",
        ),
        (
            TRACEBACK.format(raised="pyspark.errors.exceptions.base.PySparkRuntimeError: " + OTHER_PYTHON),
            "the executors have another Python (Python in worker has different version: 3.12 than that in "
            "driver: 3.11)",
        ),
        (
            LOST.format(call=3) + NO_PYTHON,
            "the executors cannot start their Python, ./environment/bin/python",
        ),
        (LOST.format(call=3) + NO_DAEMON, "the executors have no Python module holdfast"),
    ],
)
def test_what_the_executors_lack_is_one_sentence_with_what_to_do(text: str, lacks: str) -> None:
    found = explained(Py4JError(text))
    assert found.lacking
    assert not found.outside
    assert found.reason.startswith(f"{lacks}; give them the environment that the driver has (--archives")
    assert found.reason.endswith("docs/how-to/deploy.md")


def test_what_a_task_misses_on_its_machine_is_missing_on_the_executors() -> None:
    said = "Postgres needs the package psycopg; install it: pip install 'holdfast[postgres]'"
    found = explained(PythonException(TRACEBACK.format(raised=f"holdfast.errors.MachineError: {said}\n")))
    told = raised_by_task(Failure("MachineError", (said,)))
    assert found.lacking
    assert isinstance(told, MachineError)
    assert found.reason == str(told)
    assert str(told).startswith(f"the executors lack something: {said}; give them the environment that the")
    assert str(told).endswith("docs/how-to/deploy.md")
    other = raised_by_task(Failure("CorruptionError", ("damaged",)))
    assert (type(other), str(other)) == (CorruptionError, "damaged")


def test_a_python_that_could_not_be_started_this_once_is_not_missing() -> None:
    text = f'java.io.IOException: Cannot run program "python3": error=12, Cannot allocate memory{AT}'
    assert not explained(Py4JError(LOST.format(call=3) + text)).lacking


def test_an_error_of_spark_sql_keeps_its_class_and_message() -> None:
    text = (
        "[DIVIDE_BY_ZERO] Division by zero. SQLSTATE: 22012\n== SQL (line 1, position 1) ==\n1 div x\n^^^^^^^"
    )
    assert explained(AnalysisException(text)).reason == "[DIVIDE_BY_ZERO] Division by zero."


def test_data_that_reads_like_a_loss_is_none() -> None:
    said = 'Caused by: java.lang.NumberFormatException: For input string: "Job 4 cancelled, OutOfMemoryError"'
    assert not explained(Py4JError(f"An error occurred.\n: {FILE.format(number=1)}{AT}\n{said}{AT}")).outside


def test_a_call_that_java_does_not_know_is_told() -> None:
    text = (
        "An error occurred while calling o22.nope. Trace:\npy4j.Py4JException: Method nope([]) does not exist"
    )
    assert explained(Py4JError(text + AT)).reason == "Py4JException: Method nope([]) does not exist"


def test_other_errors_are_told_as_they_are_and_long_ones_are_cut() -> None:
    assert explained(ValueError("boom")).reason == "boom"
    assert len(explained(ValueError("x" * 10_000)).reason) == REASON_CHARS_MAX
