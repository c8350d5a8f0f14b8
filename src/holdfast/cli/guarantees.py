"""The end-to-end guarantee of a job as a table."""

from __future__ import annotations

import json
import sys

from rich.console import Console
from rich.table import Table

from holdfast.errors import DefinitionError
from holdfast.graph.guarantees import Guarantee, Statement, statements
from holdfast.graph.job_graph import Graph, SourceNode
from holdfast.graph.validate import check


def print_guarantees(graph: Graph, asked: str, *, as_json: bool) -> None:
    """Print what each part gives when `asked` is asked for."""
    check(graph)
    choices = [str(guarantee) for guarantee in Guarantee if guarantee is not Guarantee.NONE]
    if asked not in choices:
        raise DefinitionError(f"guarantee={asked!r} is not known; use one of {', '.join(choices)}")
    found = statements(graph, Guarantee(asked))
    if as_json:
        for statement in found:
            sys.stdout.write(json.dumps(_plain(statement)) + "\n")
        return
    table = Table(title=f"{graph.name}, asked for {asked}", title_justify="left")
    for heading in ("part", "uid", "connector", "gives", "because"):
        table.add_column(heading)
    for statement in found:
        table.add_row(*_plain(statement).values())
    console = Console()
    console.print(table)
    console.print(verdict(found, Guarantee(asked)), highlight=False)


def verdict(found: list[Statement], asked: Guarantee) -> str:
    """The table in one line."""
    short = [statement for statement in found if statement.guarantee is not asked]
    if not short:
        return f"end to end: {asked}"
    parts = ", ".join(f"{statement.node.uid} ({_words(statement.guarantee)})" for statement in short)
    return f"`run` would refuse {asked}, because of {parts}"


def _plain(statement: Statement) -> dict[str, str]:
    return {
        "part": "source" if isinstance(statement.node, SourceNode) else "sink",
        "uid": statement.node.uid,
        "connector": statement.connector,
        "gives": _words(statement.guarantee),
        "because": statement.reason,
    }


def _words(guarantee: Guarantee) -> str:
    return "no guarantee" if guarantee is Guarantee.NONE else str(guarantee)
