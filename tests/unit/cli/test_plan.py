"""`holdfast plan`: the parts of a job, as text, JSON and a picture."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from itertools import combinations, pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.cli.plan_drawing import CHARS_MAX, draw
from holdfast.graph.outline import ChannelOutline, Item, Outline, PartOutline
from holdfast.graph.protection import PROTECTIONS, ActiveReplicas, Rollback, survival
from tests.unit.cli.parts_kit import APP
from tests.unit.cli.shell import call, refusal, text

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    found = tmp_path / "app.py"
    found.write_text(APP)
    return found


def test_the_plan_for_programs_is_one_object(file: Path) -> None:
    (told,) = call("plan", str(file))
    assert told["job"] == "fraud"
    main, scoring = told["parts"]
    assert (main["name"], main["rank"], main["protection"]) == ("main", 0, "Rollback")
    assert [each["uid"] for each in main["sources"]] == ["clicks"]
    assert (scoring["name"], scoring["rank"], scoring["protection"]) == ("scoring", 1, "PassiveStandby")
    assert scoring["sinks"] == [{"uid": "out", "kind": "MemorySink", "key": [], "uncoordinated": False}]
    assert told["channels"] == [
        {
            "uid": "clicks-in", "sender": "main", "reader": "scoring", "limit_bytes": 1 << 30,
            "limit_epochs": 1_000,
        }
    ]  # fmt: skip
    assert [(each["protection"], each["of"]) for each in told["protections"]] == [
        ("Rollback", ["main"]),
        ("PassiveStandby", ["scoring"]),
    ]
    assert all(each["costs"] and each["gap"] and each["survives"] for each in told["protections"])


def test_the_plan_for_people_names_everything(file: Path) -> None:
    told = text("plan", str(file))
    for line in (
        "fraud, in 2 parts", "part main", "part scoring", "clicks (MemorySource)", "out (MemorySink)",
        "clicks-in, to scoring", "clicks-in, from main", "1.1 GB or 1,000 epochs",
        "detection and about one epoch",
    ):  # fmt: skip
        assert line in told


def test_the_plan_says_what_state_costs_that_is_in_the_input_alone(tmp_path: Path) -> None:
    file = tmp_path / "app.py"
    file.write_text(
        "import holdfast as hf\n"
        "job = hf.Job('recent')\n"
        "part = job.part('windows', protection=hf.UpstreamBackup())\n"
        "rows = job.source(hf.MemorySource([], schema='key long, at timestamp'), uid='rows')\n"
        "keyed = rows.watermark('at', delay='1s').into(part, uid='in').key_by('key')\n"
        "counts = keyed.window(hf.tumbling('1m'), on='at').aggregate(n=hf.count(), uid='counts')\n"
        "counts.sink(hf.MemorySink(), uid='out')\n"
    )
    (told,) = call("plan", str(file))
    (kept,) = [each for each in told["protections"] if each["protection"] == "UpstreamBackup"]
    assert kept["of"] == ["windows"]
    assert "nothing is saved; rows are kept upstream" in kept["costs"]
    assert "any number" in kept["survives"]
    file.write_text(file.read_text().replace("hf.tumbling('1m')", "hf.session('1m')"))
    assert "a session may go on without end" in refusal("plan", str(file), code=2)


def test_a_job_without_parts_is_one_part(tmp_path: Path) -> None:
    file = tmp_path / "app.py"
    file.write_text(
        "import holdfast as hf\n"
        "job = hf.Job('words')\n"
        "rows = job.source(hf.MemorySource([{'word': 'a'}], schema='word string'), uid='rows')\n"
        "rows.key_by('word').aggregate(seen=hf.count(), uid='counts').sink(hf.MemorySink(), uid='out')\n"
    )
    (told,) = call("plan", str(file))
    (part,) = told["parts"]
    assert (part["name"], part["operators"][0]["uid"], part["operators"][0]["key"]) == (
        "main", "counts", ["word"],
    )  # fmt: skip
    assert told["channels"] == []
    assert "counts (Aggregation, by word)" in text("plan", str(file))


def test_operators_whose_keys_are_saved_on_their_own_are_told_apart(tmp_path: Path) -> None:
    file = tmp_path / "app.py"
    file.write_text(
        "import holdfast as hf\n"
        "class Count(hf.KeyedFunction):\n"
        "    output = 'word string'\n"
        "    n = hf.ValueState('long')\n"
        "    def process(self, ctx, row):\n"
        "        yield row\n"
        "job = hf.Job('words')\n"
        "rows = job.source(hf.MemorySource([{'word': 'a'}], schema='word string'), uid='rows')\n"
        f"own = hf.Uncoordinated(every='1s', storage=hf.FileStateStorage({str(tmp_path)!r}))\n"
        "counts = rows.key_by('word').process(Count(), uid='counts', protection=own)\n"
        "counts.sink(hf.MemorySink(), uid='out')\n"
    )
    (told,) = call("plan", str(file))
    assert [(each["protection"], each["of"]) for each in told["protections"]] == [
        ("Rollback", ["main"]),
        ("Uncoordinated", ["main/counts"]),
    ]
    assert "counts (Count, by word, Uncoordinated)" in text("plan", str(file))


def test_a_job_that_is_wrong_has_no_plan(file: Path) -> None:
    file.write_text(APP.replace(", uid='out')", ")").replace('uid="out"', 'uid="clicks"'))
    assert "clicks" in refusal("plan", str(file), code=2)


@pytest.mark.parametrize(
    "protection", [*(kind.__name__ + "()" for kind in PROTECTIONS), "ActiveReplicas(k=2, vote=True)"]
)
def test_every_protection_says_what_it_costs_and_survives_in_text_json_and_picture(
    file: Path, tmp_path: Path, protection: str
) -> None:
    file.write_text(APP.replace("hf.PassiveStandby()", f"hf.{protection}"))
    svg = tmp_path / "plan.svg"
    shown = " ".join(text("plan", str(file), "--svg", str(svg)).split())
    drawn = "".join(ET.fromstring(svg.read_text()).itertext())
    (told,) = call("plan", str(file))
    scoring = told["parts"][1]["survival"]
    (listed,) = [each for each in told["protections"] if "scoring" in each["of"]]
    for name in ("costs", "gap", "survives", "needs"):
        assert scoring[name]
        assert listed[name] == scoring[name]
        assert scoring[name] in drawn
        assert scoring[name] in shown


@pytest.mark.parametrize(
    ("k", "vote", "unnoticed"), [(1, False, 1), (3, False, 3), (2, True, 1), (5, True, 2)]
)
def test_replicas_tell_how_many_nodes_they_need_and_may_lose(k: int, vote: bool, unnoticed: int) -> None:
    words = survival(ActiveReplicas(k=k, vote=vote))
    assert words.costs.startswith(f"{k + 1} times the CPU")
    assert words.gap.startswith(f"none, if at most {unnoticed} of {k + 1} ")
    assert words.survives.startswith(f"{unnoticed} at once, unnoticed")
    assert words.needs.startswith(f"{k + 1} nodes")
    assert ("votes" in words.costs, "wrong results" in words.gap) == (vote, vote)


def test_the_picture_is_written_beside_the_text(file: Path, tmp_path: Path) -> None:
    svg = tmp_path / "plan.svg"
    assert "part scoring" in text("plan", str(file), "--svg", str(svg))
    drawn = "".join(ET.fromstring(svg.read_text()).itertext())
    assert all(name in drawn for name in ("main", "scoring", "clicks-in", "PassiveStandby", "sink out"))


def test_a_picture_that_cannot_be_written_is_one_line(file: Path, tmp_path: Path) -> None:
    told = refusal("plan", str(file), "--svg", str(tmp_path / "no" / "plan.svg"), code=2)
    assert "cannot be written" in told


def made(ranks: list[int], ends: list[tuple[int, int]], name: str) -> Outline:
    parts = tuple(
        PartOutline(
            name=f"{name}{number}", rank=rank, protection="Rollback", survival=survival(Rollback()),
            sources=(Item(uid=f"in-{name}", kind="MemorySource"),), operators=(), sinks=(),
        )
        for number, rank in enumerate(ranks)
    )  # fmt: skip
    channels = tuple(
        ChannelOutline(
            uid=f"c{number}-{name}", sender=parts[sender].name, reader=parts[reader].name, limit_bytes=1,
            limit_epochs=1,
        )
        for number, (sender, reader) in enumerate(ends)
    )  # fmt: skip
    return Outline(job="j", parts=parts, channels=channels)


@st.composite
def outlines(draw_: st.DrawFn) -> Outline:
    """Up to six parts, with channels between any of them, one way."""
    count = draw_(st.integers(1, 6))
    possible = list(combinations(range(count), 2))
    ends = draw_(st.lists(st.sampled_from(possible), max_size=10)) if possible else []
    ranks: list[int] = []
    for number in range(count):
        ranks.append(max((ranks[sender] for sender, reader in ends if reader == number), default=-1) + 1)
    return made(ranks, ends, draw_(st.sampled_from(["p", "<&>", "a-name-that-is-very-long-" * 3])))


@dataclass(frozen=True)
class Area:
    left: float
    top: float
    right: float
    bottom: float

    def meets(self, other: Area) -> bool:
        return (
            self.left < other.right
            and other.left < self.right
            and self.top < other.bottom
            and other.top < self.bottom
        )


def _area(rect: ET.Element) -> Area:
    x, y, width, height = (float(rect.get(name, "0")) for name in ("x", "y", "width", "height"))
    return Area(x, y, x + width, y + height)


def _label(element: ET.Element) -> Area:
    """Where a text is; a character is taken to be 7 wide on average."""
    (shown,) = [part for part in element.itertext() if len(part) <= CHARS_MAX][-1:]
    x, y = float(element.get("x", "0")), float(element.get("y", "0"))
    return Area(x, y - 11, x + 7 * len(shown), y + 3)


def _segments(path: str) -> list[Area]:
    points: list[tuple[float, float]] = []
    for letter, first, second in re.findall(r"([MHV])(\d+)(?: (\d+))?", path):
        x, y = points[-1] if points else (0.0, 0.0)
        points.append(
            (float(first), float(second))
            if letter == "M"
            else (float(first), y)
            if letter == "H"
            else (x, float(first))
        )
    return [
        Area(min(a[0], b[0]), min(a[1], b[1]), max(a[0], b[0]), max(a[1], b[1])) for a, b in pairwise(points)
    ]


@given(outlines())
def test_nothing_in_the_picture_lies_on_anything_else(outline: Outline) -> None:
    svg = ET.fromstring(draw(outline))
    canvas = Area(0, 0, float(svg.get("width", "0")), float(svg.get("height", "0")))
    _, *boxes = map(_area, svg.findall(f"{SVG}rect"))
    labels = [_label(each) for each in svg.findall(f"{SVG}text") if each.get("font-size") == "12"]
    arrows = [_segments(each.get("d", "")) for each in svg.findall(f"{SVG}path")]
    assert (len(boxes), len(labels), len(arrows)) == (
        len(outline.parts), len(outline.channels), len(outline.channels),
    )  # fmt: skip
    for one, other in combinations([*boxes, *labels], 2):
        assert not one.meets(other), (one, other)
    for box in boxes:
        for arrow in arrows:
            assert not any(segment.meets(box) for segment in arrow), (box, arrow)
    for area in (*boxes, *labels, *(segment for arrow in arrows for segment in arrow)):
        assert area.left >= canvas.left
        assert area.top >= canvas.top
        assert area.right <= canvas.right
        assert area.bottom <= canvas.bottom


@given(outlines())
def test_arrows_of_two_channels_do_not_lie_on_one_another(outline: Outline) -> None:
    svg = ET.fromstring(draw(outline))
    arrows = [_segments(each.get("d", "")) for each in svg.findall(f"{SVG}path")]
    for one, other in combinations(arrows, 2):
        for first in one:
            for second in other:
                same_column = first.left == first.right == second.left == second.right
                same_line = first.top == first.bottom == second.top == second.bottom
                shared = min(first.bottom, second.bottom) - max(first.top, second.top) if same_column else 0
                along = min(first.right, second.right) - max(first.left, second.left) if same_line else 0
                assert shared <= 0, (first, second)
                assert along <= 0, (first, second)


@given(outlines())
def test_every_label_is_beside_its_own_arrow_and_off_the_lanes(outline: Outline) -> None:
    svg = ET.fromstring(draw(outline))
    labels = [_label(each) for each in svg.findall(f"{SVG}text") if each.get("font-size") == "12"]
    arrows = [_segments(each.get("d", "")) for each in svg.findall(f"{SVG}path")]
    for label in labels:
        for arrow in arrows:
            upright = [each for each in arrow if each.left == each.right]
            assert not any(Area(s.left - 1, s.top, s.left + 1, s.bottom).meets(label) for s in upright)
