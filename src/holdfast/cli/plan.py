"""`holdfast plan`: the parts of a job, the channels between them, and what each part costs and survives."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from holdfast.cli.closed_output import OutputConsole
from holdfast.cli.format import counted, fact_grid, new_table, print_json, size
from holdfast.cli.load_job import load_job
from holdfast.cli.options import AppFile, AsJson, JobName, Verbose, one_line_errors
from holdfast.cli.plan_drawing import draw
from holdfast.errors import DefinitionError
from holdfast.graph.outline import Item, Outline, PartOutline, outline
from holdfast.graph.protection import Survival
from holdfast.graph.validate import check


def plan(
    file: AppFile,
    svg: Annotated[Path | None, typer.Option(metavar="FILE", help="Also draw it, into this file.")] = None,
    job: JobName = None,
    json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Say of which parts a job consists, how rows go from one to another, and what each part survives. Starts
    no Spark.
    """
    with one_line_errors(verbose):
        graph = load_job(file, job).graph()
        check(graph)
        found = outline(graph)
        if svg is not None:
            _write(svg, draw(found))
        if json:
            print_json(plainly(found))
        else:
            OutputConsole().print(picture(found), highlight=False)


def plainly(found: Outline) -> dict[str, object]:
    """An outline for programs."""
    protections = [
        {"protection": name, "of": list(users), **asdict(told)} for name, told, users in found.protections()
    ]
    return {**asdict(found), "protections": protections}


def picture(found: Outline) -> RenderableType:
    """An outline for people."""
    drawn: list[RenderableType] = [Text(f"{found.job}, in {counted(len(found.parts), 'part')}")]
    for part in found.parts:
        grid = fact_grid(_facts(part, found))
        drawn += [Text(f"part {part.name}", style="bold"), Padding(grid, (0, 0, 1, 2))]
    if found.channels:
        drawn.append(Padding(_channels(found), (0, 0, 1, 0)))
    for name, words, users in found.protections():
        drawn += [Text(f"{name}: {', '.join(users)}", style="bold"), Padding(_survives(words), (0, 0, 0, 2))]
    return Group(*drawn)


def _facts(part: PartOutline, found: Outline) -> Iterable[tuple[str, str]]:
    yield "protection", part.protection
    yield from (("source", told(each)) for each in part.sources)
    yield from (("reads", f"{c.uid}, from {c.sender}") for c in found.channels if c.reader == part.name)
    yield from (("operator", told(each)) for each in part.operators)
    yield from (("sends", f"{c.uid}, to {c.reader}") for c in found.channels if c.sender == part.name)
    yield from (("sink", told(each)) for each in part.sinks)


def told(item: Item) -> str:
    """A source, operator or sink in a few words."""
    more = [item.kind]
    more += [f"by {', '.join(item.key)}"] if item.key else []
    more += ["Uncoordinated"] if item.uncoordinated else []
    return f"{item.uid} ({', '.join(more)})"


def _channels(found: Outline) -> Table:
    table = new_table("channels", "channel", "from", "to", "the sender waits when the reader is behind by")
    for each in found.channels:
        limit = f"{size(each.limit_bytes)} or {counted(each.limit_epochs, 'epoch')}"
        table.add_row(*map(Text, (each.uid, each.sender, each.reader, limit)))
    return table


def _survives(words: Survival) -> Table:
    return fact_grid(
        [
            ("costs while all is well", words.costs),
            ("gap when a node dies", words.gap),
            ("survives", words.survives),
            ("needs", words.needs),
        ]
    )


def _write(file: Path, text: str) -> None:
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as cause:
        raise DefinitionError(f"{file} cannot be written ({cause}); choose another place") from cause
