"""A report in one HTML file that needs nothing beside it: sections of plain data, put into the page in `report_page`.

All text is data: it reaches the page escaped, or through the script as text, never as HTML. The page forbids itself to
load anything and to run any script but its own.
"""

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from html import escape
from importlib.resources import files
from itertools import count
from string import Template
from typing import Any

SHOWN = 3  # commands; more of them are there to unfold

Number = float | int
Points = Sequence[Sequence[Number]]


@dataclass(frozen=True)
class Section:
    """A part of the page under a title of its own. What `html` leaves open, the script of the page draws."""

    title: str

    def html(self) -> str:
        """The part of the section that is there without a script."""
        return ""


WORDS = (
    "RMSE: how far a sample is from the exact one of the same noise, as the root mean square over its numbers (colours "
    "go from -1 to 1), in the mean over the samples. NFE: evaluations of the network for a sample."
)


@dataclass(frozen=True)
class Headline(Section):
    """The result in large letters: a figure, the sentence that explains it, and further sentences."""

    figure: str
    sentence: str
    more: Sequence[str] = ()

    def html(self) -> str:
        """The whole section."""
        further = "".join(f"<p>{escape(line)}</p>" for line in self.more)
        return f'<p class="figure">{escape(self.figure)}</p><p class="sentence">{escape(self.sentence)}</p>{further}'


@dataclass(frozen=True)
class Note(Section):
    """Plain sentences, and lists by what they are of."""

    text: str = ""
    lists: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def html(self) -> str:
        """The whole section."""
        found = [f"<p>{escape(self.text)}</p>"] if self.text else []
        for what, lines in self.lists.items():
            items = "".join(f"<li>{escape(line)}</li>" for line in lines)
            found.append(f"<p>{escape(what)}</p><ul>{items}</ul>")
        return "".join(found)


@dataclass(frozen=True)
class Column:
    """A column of a `Table`: the format of its numbers (three significant digits if not given), what stands for a
    missing one, and whether a narrow screen can do without it."""

    name: str
    format: str = ""
    missing: str = ""
    spare: bool = False


@dataclass(frozen=True)
class Table(Section):
    """Rows that a reader can sort by any column; those whose first cell is in `highlight` stand out."""

    text: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[str | Number | None]]
    highlight: Sequence[str] = ()

    def html(self) -> str:
        """The whole section but the sorting."""
        heads = "".join(
            f'<th scope="col"{_spare(column)}><button type="button">{escape(column.name)}</button></th>'
            for column in self.columns
        )
        rows = "".join(
            f"<tr{' class=own' * (row[0] in self.highlight)}>{''.join(map(_cell, row, self.columns, count()))}</tr>"
            for row in self.rows
        )
        return (
            f'<p>{escape(self.text)}</p><p class="hint">Each column sorts the table.</p>'
            f'<table class="sortable"><caption class="unseen">{escape(self.title)}</caption>'
            f"<thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"
        )


@dataclass(frozen=True)
class Chart:
    """Curves of y against x: the points of each by its name.

    dotted: further lines to compare with. slopes: (x, y, dy/dx), drawn as short tangents. decimals: of the figures
    that are read off; three significant digits if not given.
    """

    title: str
    x: str
    series: Mapping[str, Points]
    dotted: Mapping[str, Points] = field(default_factory=dict)
    slopes: Points = ()
    log: bool = False
    decimals: int | None = None


@dataclass(frozen=True)
class Curves(Section):
    """Charts with the same methods and the same x, read off together at an x that slider and pointer choose."""

    text: str
    charts: Sequence[Chart]
    highlight: Sequence[str] = ()

    def html(self) -> str:
        """The text before the charts."""
        return f"<p>{escape(self.text)}</p>"


@dataclass(frozen=True)
class Cell:
    """The samples of one method at one NFE: a sprite as a data URI, or points; `caption` says how good they are."""

    method: str
    nfe: int
    samples: str | Points
    caption: str


@dataclass(frozen=True)
class Viewer(Section):
    """Samples from the same noise by method and NFE beside the exact ones: sprites (data URIs), or points of the plane.

    count: samples of a sprite, in rows of `columns`. start: the method shown first.
    """

    text: str
    exact: str | Points
    cells: Sequence[Cell]
    count: int
    columns: int
    start: str

    def html(self) -> str:
        """The text before the viewer."""
        hint = "Choose a solver, slide the number of evaluations"
        hint += "; touch a sample to see it alone." if isinstance(self.exact, str) else "."
        return f'<p>{escape(self.text)}</p><p class="hint">{hint}</p>'


@dataclass(frozen=True)
class Learned(Section):
    """Plots by the name of a solver: charts; weights (a matrix, row k, column j) and numbers as text, if there are any.

    label: what the names are.
    """

    text: str
    solvers: Mapping[str, Mapping[str, Any]]
    label: str = "Solver"

    def html(self) -> str:
        """The text before the plots."""
        return f"<p>{escape(self.text)}</p>"


@dataclass(frozen=True)
class Choice(Section):
    """Sections of which a reader sees one at a time, chosen by its name, and on paper all; their own titles are not
    shown."""

    parts: Mapping[str, Section]
    label: str = "Model"

    def html(self) -> str:
        """All parts, one below the other, as they are without a script."""
        return "".join(
            f'<div class="part {type(part).__name__.lower()}"><h3 class="name">{escape(name)}</h3>{part.html()}</div>'
            for name, part in self.parts.items()
        )


@dataclass(frozen=True)
class Provenance(Section):
    """How it was made: command lines, and facts by name in groups."""

    commands: Sequence[str]
    groups: Mapping[str, Mapping[str, str]]

    def html(self) -> str:
        """The whole section."""
        commands = "".join(f"<pre>{escape(command)}</pre>" for command in self.commands)
        if len(self.commands) > SHOWN:
            commands = f"<details class=long><summary>The {len(self.commands)} commands</summary>{commands}</details>"
        return commands + "".join(
            f"<h3>{escape(name)}</h3><dl>"
            + "".join(f"<div><dt>{escape(key)}</dt><dd>{escape(value)}</dd></div>" for key, value in facts.items())
            + "</dl>"
            for name, facts in self.groups.items()
        )


def page(title: str, sections: Sequence[Section]) -> str:
    """The report as an HTML document."""
    script = _file("charts.js") + _file("viewer.js")
    links = [f'<a href="#section-{i}">{escape(s.title)}</a>' for i, s in enumerate(sections) if s.title]
    body = "".join(
        f'<section id="section-{i}" class="{type(section).__name__.lower()}">'
        f"<h2>{escape(section.title)}</h2>{section.html()}</section>"
        for i, section in enumerate(sections)
    )
    return Template(_file("page.html")).substitute(
        title=escape(title),
        policy=f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src '{_digest(script)}'",
        style=_file("page.css"),
        links="".join(links),
        body=body,
        data=_json([_data(section) for section in sections]),
        script=script,
    )


def _data(section: Section) -> dict[str, Any]:
    """What the script needs to draw a section."""
    fields: dict[str, Any] = {}
    if isinstance(section, Choice):
        parts = [{"name": name, **_data(part)} for name, part in section.parts.items()]
        fields = {"label": section.label, "parts": parts}
    elif isinstance(section, Curves | Viewer | Learned):
        fields = asdict(section)
    return {"kind": type(section).__name__, **fields}


def significant(value: Number) -> str:
    """A number with three significant digits, as the page's script writes it."""
    return f"{value:#.3g}".rstrip(".")


def data_uri(content: bytes, kind: str = "png") -> str:
    """A picture in a page."""
    return f"data:image/{kind};base64," + base64.b64encode(content).decode()


def _cell(value: str | Number | None, column: Column, place: int) -> str:
    """The first one of a row is its head."""
    if isinstance(value, str):
        element = "td" if place else 'th scope="row"'
        return f"<{element}{_spare(column)}>{escape(value)}</{element[:2]}>"
    text = column.missing if value is None else significant(value) if not column.format else f"{value:{column.format}}"
    return f'<td data-value="{"" if value is None else value}"{_spare(column)}>{escape(text)}</td>'


def _spare(column: Column) -> str:
    return ' class="spare"' if column.spare else ""


def _file(name: str) -> str:
    return files("bespoke_solvers").joinpath("report_page", name).read_text(encoding="utf-8")


def _digest(script: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _json(data: Any) -> str:
    """JSON that cannot end the element that it stands in."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
