"""What the tests of pages share: runs on disk, and a reader that minds how a page is made."""

from __future__ import annotations

import json
from collections.abc import Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from hpckit.config.spec_parser import dump_spec
from hpckit.report.overview import Queue
from hpckit.report.page.content_reader import read_content
from hpckit.report.page.page_content import PageContent
from hpckit.rundir.directory import RunDir
from tests.unit.hpckit.specs_and_processes import make_spec

HOSTILE = "<script>alert('1')</script>&amp;\"|`]\x1b[31m\x00\n# x"
VOID = ("meta", "br", "input", "link")


def submitted(path: Path, changes: Mapping[str, Any] | None = None, **choices: str) -> RunDir:
    """A run that has never begun; `choices` are of config groups."""
    run = RunDir(path)
    run.submission(1).mkdir(parents=True)
    run.spec(1).write_text(dump_spec(make_spec(changes, **choices)))
    return run


def ran(
    path: Path, changes: Mapping[str, Any] | None = None, lives: int = 2, per_life: int = 5
) -> RunDir:
    """A run of steps of one second, whose last life reached the last step."""
    run, now, step = submitted(path, changes), 1000.0, 0
    lines: list[dict[str, Any]] = [{"time": now, "kind": "run_started", "steps": lives * per_life}]

    def tell(kind: str, after: float, **fields: Any) -> None:
        nonlocal now
        now += after
        lines.append({"time": now, "kind": kind, **fields})

    for generation in range(1, lives + 1):
        of = {"generation": generation, "attempt": 0}
        tell("generation_started", 0.0, generation=generation, nodes=1, from_step=step)
        tell("training_started", 4.0, **of, step=step, world_size=2, samples=50, restore_s=1.0)
        for _ in range(per_life):
            step += 1
            some = {"data_hits": 3.0, "data_misses": 1.0, "data_bypasses": 0.0, "data_errors": 0.0}
            spent = {"step_s": 1.0, "data_wait_s": 0.25, "forward_s": 0.75, "other_s": 0.0}
            tell("step", 1.0, **of, step=step, loss=10.0 / step, tokens_per_s=9.0, **spent, **some)
        tell("validated", 0.0, **of, step=step, val_loss=11.0 / step, seconds=0.1)
        is_last = generation == lives
        verdict = "done" if is_last else "preempted"
        of_end = {"reason": "because", "final": is_last, "step": step, "saved_step": step}
        tell("generation_ended", 2.0, generation=generation, verdict=verdict, **of_end)
    tell("run_ended", 0.0, verdict="done", status=0)
    write(run, *lines)
    of_verdict = {"kind": "done", "final": True, "reason": "reached the last step", "time": now}
    run.verdict.write_text(json.dumps({**of_verdict, "generation": lives, "submission": 1}))
    return run


def write(run: RunDir, *lines: Mapping[str, Any] | str) -> None:
    """Add lines to the events of a run: of events, or as they are."""
    told = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    with open(run.events, "a") as file:
        file.write("".join(f"{line}\n" for line in told))


def content(run: RunDir) -> PageContent:
    return read_content(run, Queue(), lambda overview, events: None)


class Page(HTMLParser):
    """A page whose elements close in the order in which they opened."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.text = ""
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data if not self.open or self.open[-1] != "style" else ""
