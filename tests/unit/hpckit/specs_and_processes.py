"""What the tests of `hpckit` share: valid specs to change, real processes to start and wait for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from functools import lru_cache
from pathlib import Path
from typing import Any

import psutil

from hpckit.config.entry_points import IMAGES
from hpckit.config.spec import RunSpec
from hpckit.config.spec_parser import SpecError, parse_spec, spec_values
from hpckit.submit.compose import compose_spec

CHECKOUT = Path(__file__).resolve().parents[3]


@lru_cache
def _base(*choices: str) -> str:
    fixed = ["cluster.device=cpu"]
    fixed += [] if "data=mixture" in choices else ["data.shards=/data/shards"]
    if any(choice.startswith(("model=resnet", "model=vit")) for choice in choices):
        fixed += [f"entry={IMAGES}", "data=images"]
    return json.dumps(spec_values(compose_spec([*choices, *fixed])))


SOURCES = "{web: {shards: /data/web, weight: 0.7}, code: {shards: /data/code, weight: 0.3}}"
"""Of the mixture in specs with `data="mixture"`."""


def make_values(
    changes: Mapping[str, Any] | None = None,
    cluster: str = "local",
    model: str = "gpt_nano",
    start: str = "none",
    lora: str = "none",
    command: str = "none",
    health: str = "default",
    data: str = "stdlib",
) -> dict[str, Any]:
    """The values of a valid spec on options of `conf/`, with `changes` by dotted key."""
    choices = [f"cluster={cluster}", f"model={model}", f"init_from={start}", f"lora={lora}"]
    choices += [] if health == "default" else [f"health={health}"]
    if data == "mixture":
        choices += ["data=mixture", f"data.mixture.sources={SOURCES}", "data.mixture.unit=samples"]
    begun = [] if start == "none" else ["init_from.path=/trained"]
    if command != "none":
        begun += [f"command={command}", "command.arguments=[python, train.py]", "entry=null"]
    values: dict[str, Any] = json.loads(_base(*choices, *begun))
    for key, value in (changes or {}).items():
        *parents, last = key.split(".")
        where = values
        for parent in parents:
            where = where[parent]
        where[last] = deepcopy(value)
    return values


def make_spec(
    changes: Mapping[str, Any] | None = None, cluster: str = "local", **options: str
) -> RunSpec:
    """As `make_values`, a valid spec."""
    return parse_spec(make_values(changes, cluster, **options))


def violations_of(
    changes: Mapping[str, Any] | None = None, cluster: str = "local", **options: str
) -> list[str]:
    """What a spec as of `make_spec` is refused for, a line each; empty if it is valid."""
    try:
        make_spec(changes, cluster, **options)
    except SpecError as error:
        return error.violations
    return []


@contextmanager
def python(
    code: str, *arguments: object, env: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[str]]:
    """A Python process that runs `code`; it is dead and reaped after the block."""
    process = subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        env={**os.environ, **(env or {})},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def line_of(process: subprocess.Popen[str]) -> str:
    """The next line that `process` prints."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def until(condition: Callable[[], bool], within_s: float = 120.0) -> None:
    """Wait until `condition` holds; the limit only keeps a failing test from hanging."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.02)


def is_gone(pid: int) -> bool:
    """Whether process `pid` has ended, reaped by its parent or not."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
