"""`holdfast guarantees`: what each source and sink of a job gives, and what that makes end to end."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated

import typer

from holdfast.cli.closed_output import OutputConsole
from holdfast.cli.format import new_table, print_rows
from holdfast.cli.load_job import load_job
from holdfast.cli.options import AppFile, AsJson, JobName, Verbose, one_line_errors
from holdfast.errors import DefinitionError
from holdfast.graph.guarantees import Guarantee, Statement, statements
from holdfast.graph.job_graph import Graph, Node, SourceNode
from holdfast.graph.parts import homes_of, is_in_parts
from holdfast.graph.validate import check


def guarantees(
    file: AppFile,
    guarantee: Annotated[str, typer.Option(help="The guarantee to ask for.")] = "exactly-once",
    job: JobName = None,
    json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Say what each source and sink of a job guarantees, and why. Starts no Spark."""
    with one_line_errors(verbose):
        _print(load_job(file, job).graph(), guarantee, as_json=json)


def _print(graph: Graph, asked: str, *, as_json: bool) -> None:
    check(graph)
    choices = [str(guarantee) for guarantee in Guarantee if guarantee is not Guarantee.NONE]
    if asked not in choices:
        raise DefinitionError(f"guarantee={asked!r} is not known; use one of {', '.join(choices)}")
    found = statements(graph, Guarantee(asked))
    homes = homes_of(graph) if is_in_parts(graph) else {}
    headings = ("kind", "uid", "connector", "gives", "atomic", "shared")
    print_rows(
        found,
        as_json=as_json,
        plain=partial(_plain, homes),
        cells=lambda statement: list(_plain(homes, statement).values())[:-1],
        table=new_table(f"{graph.name}, asked for {asked}", *(["part"] if homes else []), *headings),
    )
    if not as_json:
        for line in (*_reasons(found), verdict(found, Guarantee(asked))):
            OutputConsole().print(line, highlight=False, markup=False, soft_wrap=True)


def _reasons(found: list[Statement]) -> list[str]:
    """Why each part gives what it gives, below the table: beside it there is no room for sentences."""
    uids_of: dict[str, list[str]] = {}
    for statement in found:
        uids_of.setdefault(statement.reason, []).append(statement.node.uid)
    return [f"{', '.join(uids)}: {reason}" for reason, uids in uids_of.items()]


def verdict(found: list[Statement], asked: Guarantee) -> str:
    """The table in one line."""
    short = [statement for statement in found if statement.guarantee is not asked]
    if not short:
        return f"end to end: {asked}"
    parts = ", ".join(f"{statement.node.uid} ({_words(statement.guarantee)})" for statement in short)
    if all(statement.accepted for statement in short):
        return f"end to end: not {asked}, as was accepted, because of {parts}"
    return f"`run` would refuse {asked}, because of {parts}"


def _plain(homes: Mapping[Node, str], statement: Statement) -> dict[str, str]:
    return {
        **({"part": homes[statement.node]} if homes else {}),
        "kind": "source" if isinstance(statement.node, SourceNode) else "sink",
        "uid": statement.node.uid,
        "connector": statement.connector,
        "gives": _words(statement.guarantee),
        "atomic": statement.atomic,
        "shared": statement.shared,
        "because": statement.reason,
    }


def _words(guarantee: Guarantee) -> str:
    return "no guarantee" if guarantee is Guarantee.NONE else str(guarantee)
