"""One of a node's jobs: its code, its checkpoint, and what others see of it, led by this node or not.

Always true: numbers of this process that only grow do so over all runs of the job in it.
Never here: the seat (see job_seat), the run (see run).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial

from holdfast.checkpoint.store.records import MemberRecord
from holdfast.cluster.node_records import NodeRecord, Unfit, checked_name
from holdfast.cluster.ranking import seat_name
from holdfast.graph.fingerprint import fingerprint_parts
from holdfast.graph.guarantees import Guarantee, check_guarantee
from holdfast.graph.parts import is_in_parts
from holdfast.graph.protection import ActiveReplicas, PassiveStandby, Rollback, UpstreamBackup, name_of
from holdfast.graph.survive import check_survival
from holdfast.graph.validate import check
from holdfast.runtime.job import Job
from holdfast.runtime.parts.part_jobs import PartJob, checked_parts, enter_checkpoint, part_jobs
from holdfast.runtime.progress import Listener, Progress
from holdfast.runtime.settings import RunOptions, Until
from holdfast.runtime.spark_session import open_session
from holdfast.storage.contract import Storage
from holdfast.storage.urls import open_storage

STANDING_BY = "standing-by"
"""The phase of a job that another node leads, or no node does yet."""


class JobOnNode:
    """A job, or a part of one. Safe to use from several threads."""

    def __init__(self, job: Job | PartJob, checkpoint: str, options: RunOptions) -> None:
        self.seat = job.seat if isinstance(job, PartJob) else 1
        """Of a part that several nodes run together: which of them this would be."""
        self.name = seat_name(checked_name("job", job.name), self.seat)
        self.job, self.checkpoint, self.options = job, checkpoint, options
        self.code = _code_of(job)
        """What it is, piece by piece: nodes where that differs do not run it together."""
        self.siblings = job.other_parts if isinstance(job, PartJob) else ()
        """The other parts of its job."""
        self.before = job.before if isinstance(job, PartJob) else ()
        """The jobs of this node whose rows it reads: the parts before it."""
        ends_by_itself = options.get("until") == Until.EXHAUSTED
        self.other_parts = self.siblings if ends_by_itself else ()
        """The same, where the job ends by itself: it never does if one of them has failed."""
        self.before_run = True
        """Whether one of these is still to be run: then its channels have not ended."""
        self.nodes: Collection[NodeRecord] = ()
        """Those of the cluster, as it was seen last."""
        self.unfit: Unfit | None = None
        """Why this node leaves the job to the others; None: it does not."""
        self.failure: BaseException | None = None
        """The failure that `unfit` tells of, or that of a fellow which ended a run of this node."""
        self.superseded = ""
        """How the code of the node that leads the job, or led it last, differs from this one's: then the job
        is left to nodes of that code. Empty: it does not, or may."""
        self._newest = Progress(job=self.name, phase=STANDING_BY)
        self._before = self._newest
        """The last of the run before this one: what was counted until then."""
        self._listeners: list[Listener] = []
        self._lock = threading.Lock()

    def standby(self, of_node: str) -> str:
        """How a node of some kind of standby stands by for this job: a part may ask for more, and where no
        state is saved there is none to follow."""
        protection = self.job.protection if isinstance(self.job, PartJob) else None
        kind = "hot" if isinstance(protection, PassiveStandby) else of_node
        saves_state = self.options.get("guarantee") != Guarantee.AT_MOST_ONCE
        follows = saves_state and not isinstance(protection, UpstreamBackup)
        return kind if follows or kind == "cold" else "warm"

    @property
    def votes(self) -> bool:
        """Whether it is a part with replicas that vote."""
        protection = self.job.protection if isinstance(self.job, PartJob) else None
        return isinstance(protection, ActiveReplicas) and protection.vote

    def parts_elsewhere(self) -> list[str]:
        """The names of parts of the same job that only other code has, by what is stored."""
        return self.job.parts_elsewhere() if isinstance(self.job, PartJob) else []

    def member_runs(self, member: MemberRecord) -> bool:
        """Whether the process that is a member of a set of replicas is a node of the cluster: one that
        registered later is another process, though it has the same number."""
        return any(
            (node.host, node.pid) == (member.host, member.pid) and node.since_ms <= member.joined_ms
            for node in self.nodes
        )

    @property
    def left_to_others(self) -> bool:
        """Whether this node neither leads the job nor stands by for it."""
        return self.unfit is not None or bool(self.superseded)

    @property
    def storage(self) -> Storage:
        """The job's checkpoint storage."""
        return open_storage(self.checkpoint)

    @property
    def running(self) -> bool:
        """Whether a run of this node is under way."""
        return self._newest.phase != STANDING_BY

    def status(self) -> Progress:
        """Where the run stands now, or stood when it ended."""
        return self._newest

    def listen(self, listener: Listener) -> None:
        """Tell `listener` of every change from now on, and at once how things stand."""
        self._listeners.append(listener)
        listener(self._newest)

    def note(self, progress: Progress) -> None:
        """A run of this node goes on."""
        with self._lock:
            counted = self._before
            self._tell(
                replace(
                    progress,
                    epochs_run=counted.epochs_run + progress.epochs_run,
                    rows_run=counted.rows_run + progress.rows_run,
                )
            )

    def ended(self) -> None:
        """The run is over; this node stands by."""
        with self._lock:
            self._before = replace(self._newest, phase=STANDING_BY, error=None)
            self._tell(self._before)

    def _tell(self, now: Progress) -> None:
        self._newest = now
        for listener in self._listeners:
            listener(now)


def _code_of(job: Job | PartJob) -> dict[str, str]:
    code = fingerprint_parts(job.graph())
    if isinstance(job, PartJob) and not isinstance(job.protection, Rollback):
        # A set of replicas and a leader alone would take the part from each other, again and again.
        code[f"protection {name_of(job.protection)}"] = ""
    return code


def places_of(jobs: Sequence[Job], checkpoint: str) -> list[tuple[Job, str]]:
    """A node's jobs, each with its place. Where there are several, each has its checkpoint below
    `checkpoint`."""
    root = checkpoint if "://" in checkpoint else os.path.abspath(os.path.expanduser(checkpoint))
    return [(job, root if len(jobs) == 1 else f"{root.rstrip('/')}/{job.name}") for job in jobs]


def check_jobs(jobs: Sequence[Job], checkpoint: str, options: RunOptions) -> None:
    """DefinitionError: one of these jobs cannot run so."""
    for job, place in places_of(jobs, checkpoint):
        graph = job.graph()
        if is_in_parts(graph):
            checked_parts(graph, place, options)
        else:
            check(graph)
            check_guarantee(graph, options.get("guarantee", Guarantee.EXACTLY_ONCE))
        check_survival(graph, options.get("survive", 0), place)


def jobs_on_node(jobs: Sequence[Job], checkpoint: str, options: RunOptions) -> dict[str, JobOnNode]:
    """A node's jobs by name, and in place of one in parts its parts."""
    found = []
    for job, place in places_of(jobs, checkpoint):
        graph = job.graph()
        if is_in_parts(graph):
            found += [
                JobOnNode(part.in_seat(seat), part.checkpoint, options)
                for part in part_jobs(graph, place)
                for seat in part.seats
            ]
        else:
            found.append(JobOnNode(job, place, options))
    return {job.name: job for job in found}


def enter_checkpoints(jobs: Sequence[Job], checkpoint: str, options: RunOptions) -> None:
    """Let the checkpoints of jobs in parts know their parts. RestoreError: one is another job's."""
    for job, place in places_of(jobs, checkpoint):
        graph = job.graph()
        if is_in_parts(graph):
            enter_checkpoint(graph, place, options, partial(open_session, graph.name))
