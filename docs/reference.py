"""Writes `docs/cli.md`, `docs/config.md` and `docs/events.md` from the commands, the spec and the
schema of events themselves.

python -m docs.reference
"""

from __future__ import annotations

import html
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, get_args, get_type_hints

import typer
import yaml

from docs.events_reference import events_page
from hpckit.cli.main import app
from hpckit.config.config_trees import conf_dir, group_options
from hpckit.config.renamed_keys import RENAMED, RENAMED_OPTIONS, shown
from hpckit.config.spec import RunSpec
from hpckit.submit.manual_page import keys, manual

FOLDER = Path(__file__).parent
WRITTEN = (
    "<!-- Written by python -m docs.reference: change what it is taken from, not this page. -->"
)
CLI_HEAD = f"""{WRITTEN}

# Command line

This page shows what `hpckit` and its commands print with `--help`. The exit status of `launch`
and `resume` says how the run ended:
[what ended it, and what follows](runs.md#what-ended-it-and-what-follows).
"""
CONFIG_HEAD = f"""{WRITTEN}

# Config

The config of a run is composed from `conf/config.yaml`, one option of each group, and overrides on
the command line: `group=option`, `key=value`. `python launch.py --help keys` prints the same
reference, and `--cfg` shows the composed config. Unknown keys are refused, except below
`user_config`, which has your own keys.

Defaults are those of `conf/config.yaml` and of the options that it selects. For a key that these do
not have, the default of the first option with the key is given, together with that option.

Names of earlier releases work in overrides, in files of your project and in stored specs, and cause
a warning with the present name.
"""


def cli_page() -> str:
    """Every command: usage, what it does, example, arguments and options."""
    sections = [_command(words, command) for words, command in commands()]
    return "\n".join([CLI_HEAD, *sections])


def commands() -> Iterator[tuple[str, Any]]:
    """Every command and group, with the words that it is called by."""
    yield from _walk("hpckit", typer.main.get_command(app))


def _walk(words: str, command: Any) -> Iterator[tuple[str, Any]]:
    yield words, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from _walk(f"{words} {name}", inner)


def _command(words: str, command: Any) -> str:
    with command.make_context(words, [], resilient_parsing=True) as context:
        usage = " ".join(command.get_usage(context).split()).removeprefix("Usage: ")
        records = [parameter.get_help_record(context) for parameter in command.params]
    lines = [f"## {words}", "", f"    {usage}", ""]
    for paragraph in (command.help or "").split("\n\n"):
        lines += [_paragraph(paragraph), ""]
    if command.name == "launch":  # which reads its words itself
        lines += [_indented(manual(group_options(conf_dir()))), ""]
    rows = [[code(record[0]), escaped(record[1])] for record in records if record]
    return "\n".join([*lines, *_table(["argument or option", ""], rows)])


def _paragraph(text: str) -> str:
    line = " ".join(text.replace("\b", "").split())
    example = line.removeprefix("Example: ")
    return escaped(line) if example == line else f"Example:\n\n    {example}"


def config_page() -> str:
    """Every group: what it is, its options; and its keys with type, default and meaning."""
    groups, everything = group_options(conf_dir()), keys()
    default = _defaults(groups)
    lines = [CONFIG_HEAD, *_renamed()]
    for place in _places(key.name for key in everything):
        lines += [f"{'###' if '.' in place else '##'} {place or 'The run itself'}", ""]
        lines += [escaped(_document(place)), "", *_options(place, groups.get(place, []))]
        rows = [
            [f"`{key.name}`", escaped(key.kind), escaped(default(key.name)), escaped(key.meaning)]
            for key in everything
            if _parent(key.name) == place
        ]
        lines += _table(["key", "type", "default", "meaning"], rows)
    lines += [
        "## experiment",
        "",
        "Overrides of several groups: one run that is worth repeating.",
        "",
    ]
    return "\n".join([*lines, *_options("experiment", groups["experiment"])])


def _renamed() -> list[str]:
    """The earlier spellings, and what they are now."""
    rows = [[f"`{one.old}`", f"`{one.new}`"] for one in RENAMED if not one.values]
    rows += [
        [f"`{one.old}={old}`", f"`{one.new}={shown(new)}`"]
        for one in RENAMED
        for old, new in one.values.items()
    ]
    options = RENAMED_OPTIONS.items()
    rows += [[f"`{group}={old}`", f"`{group}={new}`"] for (group, old), new in options]
    return _table(["earlier name", "present name"], rows)


def _parent(key: str) -> str:
    return key.rpartition(".")[0]


def _places(names: Iterable[str]) -> list[str]:
    """The groups, and groups in groups, that hold these keys; each after what it is in."""
    found: dict[str, None] = {}
    for name in names:
        words = _parent(name).split(".")
        found.update(dict.fromkeys(".".join(words[:n]) for n in range(1, len(words) + 1)))
    return sorted(found, key=lambda place: list(found).index(place.split(".")[0]))


def _document(place: str) -> str:
    """What a group says of itself; of several kinds of it, each."""
    kinds: list[Any] = [RunSpec]
    for word in filter(None, place.split(".")):
        hints = [get_type_hints(kind)[word] for kind in kinds if word in get_type_hints(kind)]
        kinds = [one for hint in hints for one in get_args(hint) or (hint,) if is_dataclass(one)]
    said = [" ".join(kind.__doc__.split()) for kind in kinds]
    if len(kinds) == 1:
        return said[0]
    names = [get_args(get_type_hints(kind)["kind"])[0] for kind in kinds]
    return " ".join(f"`{name}`: {text}" for name, text in zip(names, said, strict=True))


def _options(group: str, options: Sequence[str]) -> list[str]:
    """What can be chosen for a group, in the words of the file."""
    rows = [[f"`{group}={option}`", escaped(_comment(group, option))] for option in options]
    return _table(["option", ""], rows)


def _comment(group: str, option: str) -> str:
    """The comment that the file begins with, without the command that takes it."""
    text = (conf_dir() / group / f"{option}.yaml").read_text(encoding="utf-8")
    head = itertools.takewhile(lambda line: line.startswith("#"), text.splitlines())
    lines = [line.removeprefix("#").strip() for line in head]
    return " ".join(line for line in lines if not line.startswith(("@package", "python launch.py")))


def _defaults(groups: Mapping[str, Sequence[str]]) -> Callable[[str], str]:
    """Tells the default of a key: of the root, else of an option that is named with it."""
    root = _values(conf_dir() / "config.yaml")
    chosen = {name: option for entry in root["defaults"] for name, option in _pairs(entry)}

    def default(key: str) -> str:
        group = key.split(".")[0]
        first = [chosen[group]] if group in chosen else []
        others = [option for option in groups.get(group, []) if not _bases(group, option)]
        trees = [("", root)]
        trees += [(o, {group: _option(group, o)}) for o in dict.fromkeys([*first, *others])]
        for option, tree in trees:
            if (found := _dig(tree, key.split("."))) is not _NOWHERE:
                with_it = "" if option in ("", *first) else f", with {group}={option}"
                return "to be given" + with_it if found == "???" else f"`{_plain(found)}`{with_it}"
        return ""

    return default


_NOWHERE = object()


def _dig(tree: Any, path: Sequence[str]) -> Any:
    for word in path:
        if not isinstance(tree, dict) or word not in tree:
            return _NOWHERE
        tree = tree[word]
    return tree


@cache
def _option(group: str, option: str) -> dict[str, Any]:
    """The keys of an option, with those of what it is based on."""
    merged: dict[str, Any] = {}
    for base in _bases(group, option):
        merged |= _option(group, base)
    for key, value in _values(conf_dir() / group / f"{option}.yaml").items():
        inner = merged.get(key)
        merged[key] = inner | value if isinstance(inner, dict) and value else value
    return {key: value for key, value in merged.items() if key != "defaults"}


def _bases(group: str, option: str) -> list[str]:
    entries = _values(conf_dir() / group / f"{option}.yaml").get("defaults", [])
    return [entry for entry in entries if isinstance(entry, str) and entry != "_self_"]


def _pairs(entry: Any) -> Iterable[tuple[str, str]]:
    return entry.items() if isinstance(entry, dict) else ()


@cache
def _values(path: Path) -> dict[str, Any]:
    values = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert isinstance(values, dict)
    return values


def _plain(value: Any) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, width=10**6).strip()
    return text.removesuffix("...").strip()


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows] if rows else []
    return [*(f"| {' | '.join(line)} |" for line in lines), ""] if rows else []


def escaped(text: str) -> str:
    """Plain text with `code` in it, for Markdown and its tables."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else _plain_text(part) for part in parts)


def _plain_text(text: str) -> str:
    return re.sub(r"([\\*\[\]|])", r"\\\1", text).replace("<", "&lt;")


def code(text: str) -> str:
    """A code span, also of what would end a cell."""
    if "|" not in text:
        return f"`{text}`"
    return f"<code>{html.escape(text, quote=False).replace('|', '&#124;')}</code>"


def _indented(text: str) -> str:
    return "\n".join(f"    {line}".rstrip() for line in text.splitlines())


def pages() -> dict[Path, str]:
    """Each page that is written, with its text."""
    events = f"{WRITTEN}\n\n{events_page(escaped, _table)}"
    texts = {"cli.md": cli_page(), "config.md": config_page(), "events.md": events}
    return {FOLDER / name: f"{text.rstrip()}\n" for name, text in texts.items()}


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
