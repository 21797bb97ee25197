"""``slurmmesh templates``: which there are, what is in them, and whether one of yours is good."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from slurmmesh.config import Sourced, load_layers
from slurmmesh.errors import EXIT_OK, UsageError
from slurmmesh.slurm.template import render, template_names, template_text
from slurmmesh.slurm.template_check import problems_of, samples
from slurmmesh.submit.door import Parser, run
from slurmmesh.submit.keys import submit_keys
from slurmmesh.submit.output import write

_COMMENT = re.compile(r"\s*\{#-?(.*?)-?#\}", re.DOTALL)
_DEFAULT = "default"


@dataclass(frozen=True)
class Row:
    """A template, as ``list`` shows it.

    Attributes:
        origin: where it comes from: slurmmesh, or who asks for the file.
        used: a submit takes it unless told otherwise.
    """

    name: str
    description: str
    origin: str
    used: bool


def main(argv: Sequence[str]) -> int:
    """Run the command; returns its exit code."""
    return run(_main, argv)


def _main(argv: Sequence[str]) -> int:
    asked = _parser().parse_args(list(argv))
    match asked.verb:
        case "list":
            rows = _rows()
            write(_as_json(rows) if asked.json else _as_text(rows))
        case "show":
            write(_shown(asked.template, rendered=asked.rendered))
        case "check":
            write(_checked(asked.template))
    return EXIT_OK


def description_of(text: str) -> str:
    """What a template says of itself: the comment that it begins with, in one line."""
    match = _COMMENT.match(text)
    return " ".join(match[1].split()) if match else ""


def _rows() -> list[Row]:
    wish = load_layers(submit_keys=submit_keys()).values.get("submit.template")
    used = str(wish.value) if wish else _DEFAULT
    rows = [
        Row(name, description_of(template_text(name)), "slurmmesh", name == used)
        for name in template_names()
    ]
    if wish and used not in template_names():
        rows.append(_row_of_file(used, wish))
    return rows


def _row_of_file(name: str, wish: Sourced) -> Row:
    try:
        description = description_of(template_text(name))
    except UsageError as error:
        description = str(error)
    return Row(name, description, str(wish.origin), used=True)


def _as_text(rows: Sequence[Row]) -> str:
    width = max(len(row.name) for row in rows)
    lines = [
        f"{'*' if row.used else ' '} {row.name:{width}}  {row.description}"
        + (f"  # {row.origin}" if row.origin != "slurmmesh" else "")
        for row in rows
    ]
    lines += ["", "* is what a submit takes without --template"]
    return "\n".join(lines) + "\n"


def _as_json(rows: Sequence[Row]) -> str:
    return json.dumps([asdict(row) for row in rows], indent=2) + "\n"


def _shown(template: str, *, rendered: bool) -> str:
    if rendered:
        return render(samples(template)["with GPUs and spares"])
    return template_text(template)


def _checked(template: str) -> str:
    if problems := problems_of(template):
        raise UsageError(f"template {template!r}:\n  " + "\n  ".join(problems))
    return f"{template}: good for jobs of {len(samples(template))} kinds\n"


def _parser() -> Parser:
    parser = Parser(
        prog="slurmmesh templates",
        description="The templates of batch scripts.",
        epilog="docs/templates.md tells how to choose one, and how to write one.",
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="list|show|check")
    verb = verbs.add_parser("list", help="which there are")
    verb.add_argument("--json", action="store_true", help="for programs")
    verb = verbs.add_parser("show", help="the text of one")
    verb.add_argument("template", metavar="NAME|FILE")
    verb.add_argument("--rendered", action="store_true", help="the script of an example job")
    verb = verbs.add_parser(
        "check",
        help="whether one is good: tried with jobs of every kind, of which none is run",
    )
    verb.add_argument("template", metavar="NAME|FILE")
    return parser
