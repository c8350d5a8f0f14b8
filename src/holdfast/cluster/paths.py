"""Where each node lives in ZooKeeper.

/holdfast/NAME               the cluster (ClusterCard)
/holdfast/NAME/nodes/N       a node that is there (NodeCard), ephemeral
/holdfast/NAME/seats/JOB     a seat
    holder                   who holds it (HolderCard), ephemeral: created by whoever wins
    pulse                    the last sign of life of a holder (PulseCard)
    wish                     the holder is to give it up (WishCard)
    over                     the job is not to be run any more (OverCard)
"""

from __future__ import annotations

import re

from holdfast.errors import DefinitionError

ROOT = "/holdfast"


def checked_name(what: str, name: str) -> str:
    """A name that can be part of a path."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,99}", name):
        raise DefinitionError(
            f"the {what} name {name!r} cannot be used; take letters, digits and . _ @ -, 100 at most"
        )
    return name


def cluster(name: str) -> str:
    return f"{ROOT}/{name}"


def nodes(cluster_name: str) -> str:
    return f"{cluster(cluster_name)}/nodes"


def node(cluster_name: str, name: str) -> str:
    return f"{nodes(cluster_name)}/{name}"


def seats(cluster_name: str) -> str:
    return f"{cluster(cluster_name)}/seats"


def seat(cluster_name: str, job: str) -> str:
    return f"{seats(cluster_name)}/{job}"


def holder(cluster_name: str, job: str) -> str:
    return f"{seat(cluster_name, job)}/holder"


def pulse(cluster_name: str, job: str) -> str:
    return f"{seat(cluster_name, job)}/pulse"


def wish(cluster_name: str, job: str) -> str:
    return f"{seat(cluster_name, job)}/wish"


def over(cluster_name: str, job: str) -> str:
    return f"{seat(cluster_name, job)}/over"
