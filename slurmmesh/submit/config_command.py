"""``slurmmesh config``: each setting, its value, and where that comes from."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

from slurmmesh.config import SETTINGS, Loaded, Sourced, SubmitKeys, load_layers, near
from slurmmesh.errors import EXIT_OK, UsageError
from slurmmesh.submit.door import Parser, run
from slurmmesh.submit.keys import submit_keys
from slurmmesh.submit.output import write

_PROGRAM = "slurmmesh config"
_SUBMIT = "submit."


def main(argv: Sequence[str]) -> int:
    """Run the command; returns its exit code."""
    return run(_main, argv)


def _main(argv: Sequence[str]) -> int:
    asked = _parser().parse_args(list(argv))
    options = submit_keys()
    loaded = load_layers(config_file=asked.config, profile=asked.profile, submit_keys=options)
    keys = [_full_key(text, options) for text in asked.keys]
    write(_as_json(loaded, keys) if asked.json else _as_text(loaded, keys))
    return EXIT_OK


def _full_key(text: str, options: SubmitKeys) -> str:
    """A key as ``Loaded.values`` has it. An option's name alone will do."""
    key = text.removeprefix(_SUBMIT)
    name, dot, entry = key.partition(".")
    name = name.replace("-", "_")
    if name in SETTINGS and key == text and not dot:
        return name
    if name in options and (not dot or options[name].kind == "table"):
        return _SUBMIT + name + dot + entry
    hint = near(name, (*SETTINGS, *options), f"{_PROGRAM} shows what is set")
    raise UsageError(f"there is no setting {text!r}: {hint}")


def _shown(loaded: Loaded, keys: Sequence[str]) -> dict[str, Sourced | None]:
    """What was asked for, else all that is set; an option that is a table with all its entries."""
    if not keys:
        return dict(loaded.values)
    found: dict[str, Sourced | None] = {}
    for key in keys:
        fitting = [each for each in loaded.values if each == key or each.startswith(f"{key}.")]
        found.update((each, loaded.values.get(each)) for each in fitting or [key])
    return found


def _as_text(loaded: Loaded, keys: Sequence[str]) -> str:
    rows = [
        (f"{key} = {_literal(each.value)}", str(each.origin)) if each else (key, "not set")
        for key, each in _shown(loaded, keys).items()
    ]
    width = min(max(len(left) for left, _ in rows), 60)
    text = "".join(f"{left:{width}}  # {right}\n" for left, right in rows)
    return text if keys else text + "\n" + _sources(loaded)


def _sources(loaded: Loaded) -> str:
    lines = ["settings files, each over those above it:"]
    lines += [
        f"  {place.kind:9}{_printable(place.path)}{'' if place.found else '  (not there)'}"
        for place in loaded.places
    ]
    if loaded.profiles:
        lines.append(f"profiles: {', '.join(map(_printable, loaded.profiles))}")
    if loaded.profile:
        lines.append(f"profile in use: {loaded.profile.value}, from {loaded.profile.origin}")
    return "\n".join(lines) + "\n"


def _as_json(loaded: Loaded, keys: Sequence[str]) -> str:
    values = {key: each and _sourced(each) for key, each in _shown(loaded, keys).items()}
    tree: dict[str, Any] = {
        "values": values,
        "files": [dataclasses.asdict(place) for place in loaded.places],
        "profiles": list(loaded.profiles),
        "profile": loaded.profile and _sourced(loaded.profile),
    }
    return json.dumps(tree, indent=2, default=str) + "\n"


def _sourced(each: Sourced) -> Mapping[str, Any]:
    return {"value": each.value, "origin": dataclasses.asdict(each.origin)}


def _literal(value: Any) -> str:
    """As TOML would have it, so that it can be copied into a file."""
    if value is None:
        return "(from the environment of the submit)"
    if isinstance(value, tuple):
        return f"[{', '.join(map(_literal, value))}]"
    if isinstance(value, (bool, int, float)):
        return json.dumps(value)
    text = str(value)
    return json.dumps(text, ensure_ascii=not text.isprintable())


def _printable(text: str) -> str:
    return text if text.isprintable() else repr(text)


def _parser() -> Parser:
    parser = Parser(
        prog=_PROGRAM,
        description="Shows each setting, its value, and where that comes from.",
        epilog="docs/settings.md tells how they are set.",
    )
    add = parser.add_argument
    add("keys", nargs="*", metavar="KEY", help="only these: job_root, submit.partition")
    add("--json", action="store_true", help="for programs")
    add("--config", metavar="FILE", help="with this file over the others, as submit would")
    add("--profile", metavar="NAME", help="with this profile, as submit would")
    return parser
