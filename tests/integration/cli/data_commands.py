"""Runs `hpckit data` in this process, on shards that were made for it and maybe are served."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from data import ShardWriter
from hpckit.cli.main import app
from tests.services.range_server import RangeServer

SHARDS, EACH, SIZE = 6, 20, 3000


def write_shards(folder: Path, shards: int = SHARDS) -> Path:
    """Samples with the keys "000" to "119", of all shards."""
    with ShardWriter(folder / "s-%02d.tar", max_samples=EACH) as writer:
        for number in range(shards * EACH):
            content = number.to_bytes(2, "little") * (SIZE // 2)
            writer.write({"__key__": f"{number:03d}", "bin": content})
    return folder


def serve(server: RangeServer, folder: Path) -> str:
    """The URL of these shards, on this server."""
    for path in sorted(folder.iterdir()):
        server.put(f"/set/{path.name}", path.read_bytes())
    return f"{server.url}/set/"


def hpckit(*arguments: object) -> Result:
    result = CliRunner().invoke(app, ["data", *map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception  # a traceback for the user
    return result


def document(*arguments: object, exit_code: int = 0) -> Any:
    """What --json prints: one JSON document and nothing else."""
    result = hpckit(*arguments, "--json")
    assert result.exit_code == exit_code, result.output
    return json.loads(result.stdout, parse_constant=pytest.fail)


def refused(*arguments: object, says: str, exit_code: int = 2) -> None:
    """One line that says why, nothing else, and the exit status."""
    result = hpckit(*arguments)
    assert result.exit_code == exit_code, result.output
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert len(result.stderr.splitlines()) == 1
    assert says in result.stderr
    assert says in document(*arguments, exit_code=exit_code)["error"]
