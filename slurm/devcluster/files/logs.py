"""Finds the lines of a cluster's logs that explain a failure."""

from __future__ import annotations

import re
from pathlib import Path

_TELLING = re.compile(r"\b(fatal|error|refused|denied|cannot|failed)\b", re.IGNORECASE)
# Said by every healthy cluster
_HARMLESS = re.compile(
    r"pmix|MaxNodes|Can't find an address|Could not open .* state|Trying backup|but not stored",
    re.IGNORECASE,
)
_SPEAKER = re.compile(r"^\S+:\s+|^\[[^]]*\]\s*")  # a program, or a time
_LINES = 5  # of each log
_READ = 64 << 10  # bytes of its end


def telling(folder: Path) -> str:
    """Returns the last lines of each log that report an error, each once."""
    lines: dict[str, str] = {}
    for path in sorted(folder.glob("*")):
        for line in telling_lines(_end(path)):
            lines.setdefault(line, f"  {path.name}: {line}")
    return "\n".join(lines.values()) or "  (the logs report no error)"


def telling_lines(text: str) -> list[str]:
    """Returns the lines that report an error, without time and program, each once."""
    lines = [_SPEAKER.sub("", line.strip()) for line in text.splitlines()]
    errors = [line for line in lines if _TELLING.search(line) and not _HARMLESS.search(line)]
    return list(dict.fromkeys(errors))[-_LINES:]


def _end(path: Path) -> str:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _READ))
        return file.read().decode(errors="replace")
