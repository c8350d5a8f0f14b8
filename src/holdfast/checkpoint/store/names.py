"""Where each record lives in checkpoint storage. Numbers are padded, so names sort as numbers do.

Never here: names of files under `data/E/` beyond their epoch directory; their writers choose them.
"""

from __future__ import annotations

import re

from holdfast.storage.contract import Storage

JOB = "job"
LAYOUTS = "layout/"
PARTS = "parts/"
BARRIERS = "barriers/"
"""These three are at the root of a job in parts, where no checkpoint is; each part has its own below."""
TERMS = "terms/"
MEMBERS = "members/"
DRAINING = "draining/"
VOTES = "votes/"
PLANS = "plans/"
COMMITS = "commits/"
MANIFESTS = "manifests/"
FLOORS = "floor/"
PINS = "pins/"
ENDED = "ended/"
FAILURES = "failures/"
FAILOVERS = "failovers/"
CLUSTERS = "cluster/"
CLAIMS = "claims/"
REQUESTS = "requests/"
ANSWERS = "answers/"
DATA = "data/"
SNAPSHOTS = "snapshots/"
LOGS = "log/"

SAVEPOINT = "savepoint"
UNFINISHED = "unfinished"
CLAIMED = "claimed"
"""These three are in the directory of a savepoint, never in that of a checkpoint."""

_SNAPSHOT = re.compile(rf"{SNAPSHOTS}\d{{12}}/([^/]+)-(\d+)-(\d+)-[^-/]+")


def layout(number: int) -> str:
    return f"{LAYOUTS}{number:012d}"


def barrier(number: int) -> str:
    return f"{BARRIERS}{number:012d}/begun"


def barrier_end(number: int) -> str:
    return f"{BARRIERS}{number:012d}/ended"


def term(number: int) -> str:
    return f"{TERMS}{number:012d}"


def members_of(term: int) -> str:
    return f"{MEMBERS}{term:012d}/"


def member(term: int, seat: int, number: int) -> str:
    return f"{members_of(term)}{seat:03d}-{number:06d}"


def draining(term: int) -> str:
    return f"{DRAINING}{term:012d}"


def drain_end(term: int) -> str:
    return f"{draining(term)}-end"


def votes_of(epoch: int, term: int) -> str:
    return f"{VOTES}{epoch:012d}/{term:012d}-"


def vote(epoch: int, term: int, seat: int, content: str) -> str:
    return f"{votes_of(epoch, term)}{seat:03d}-{content}"


def ended(term: int) -> str:
    return f"{ENDED}{term:012d}"


def plans_of(epoch: int) -> str:
    return f"{PLANS}{epoch:012d}/"


def plan(epoch: int, attempt: int) -> str:
    return f"{plans_of(epoch)}{attempt:06d}"


def commit(number: int) -> str:
    return f"{COMMITS}{number:012d}"


def manifest(number: int, content: str) -> str:
    return f"{MANIFESTS}{number:012d}-{content}"


def floor(number: int) -> str:
    return f"{FLOORS}{number:012d}"


def pin(name: str) -> str:
    return f"{PINS}{name}"


def cluster(number: int) -> str:
    return f"{CLUSTERS}{number:012d}"


def claim(savepoint: str) -> str:
    return f"{CLAIMS}{savepoint}"


def request(id: str) -> str:
    return f"{REQUESTS}{id}"


def answers_of(id: str) -> str:
    return f"{ANSWERS}{id}/"


def data_of(epoch: int) -> str:
    """The directory for everything that attempts at this epoch write."""
    return f"{DATA}{epoch:012d}/"


def snapshots_of(epoch: int) -> str:
    """The directory for snapshots that were asked for when this was the newest epoch."""
    return f"{SNAPSHOTS}{epoch:012d}/"


def snapshot(epoch: int, operator: str, first_group: int, end_group: int, token: str, kind: str) -> str:
    """`token`: no other snapshot of this shard has it. `kind`: of the file."""
    return f"{snapshots_of(epoch)}{operator}-{first_group}-{end_group - 1}-{token}.{kind}"


def shard_of_snapshot(name: str) -> tuple[str, int, int] | None:
    """Operator, first key group and the one after the last, of a snapshot; None: its name does not tell."""
    found = _SNAPSHOT.fullmatch(name)
    return (found[1], int(found[2]), int(found[3]) + 1) if found else None


def log_of(source: str) -> str:
    """The directory of what a source has received."""
    return f"{LOGS}{source}/"


def log_batch(source: str, number: int) -> str:
    return f"{log_of(source)}{number:012d}"


def log_floors_of(source: str) -> str:
    return f"{log_of(source)}floor/"


def log_floor(source: str, number: int) -> str:
    return f"{log_floors_of(source)}{number:012d}"


def log_end(source: str, number: int) -> str:
    """In a savepoint: up to which batch the log was copied."""
    return f"{log_of(source)}end/{number:012d}"


def number_of(name: str) -> int | None:
    """The number that the second part of a name begins with; None for a name that is not ours."""
    parts = name.split("/")
    digits = parts[1][:12] if len(parts) > 1 else ""
    return int(digits) if len(digits) == 12 and digits.isdecimal() else None


def highest(storage: Storage, prefix: str) -> int:
    """The highest number below `prefix`, from names alone; 0: there is none."""
    return max((number_of(entry.name) or 0 for entry in storage.list(prefix)), default=0)


def all_but_newest(storage: Storage, prefix: str, kept: int) -> list[str]:
    """The names below `prefix` without the `kept` newest."""
    return [entry.name for entry in storage.list(prefix)][:-kept]
