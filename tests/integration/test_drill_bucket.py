"""A campaign on a bucket whose server is busy, resets, hangs, and knows the key no more, while
ranks and supervisors are killed: nothing is lost."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from checkpointing import list_checkpoints
from hpckit.drill.faults import DrillKind
from hpckit.drill.schedule import Planned, save_schedule
from tests.integration.run_commands import HPCKIT
from tests.integration.runs import end_leftovers
from tests.services.fault_proxy import FaultProxy
from tests.services.faults import EXPIRED_TOKEN, SLOW_DOWN, Fault, Hang, LoseReply, Reset
from tests.services.fixtures import FaultyS3

STEPS = 90
TROUBLES: dict[str, Fault] = {
    "busy": SLOW_DOWN,
    "resets": Reset(),
    "stuck": Hang(2.0),
    "expired": EXPIRED_TOKEN,
    "mute": LoseReply(),
}
SCHEDULE = (
    Planned(8, "busy", 0.0),
    Planned(12, DrillKind.WORKER, 0.9),
    Planned(24, "stuck", 0.0),
    Planned(27, DrillKind.NODE, 0.9),
    Planned(38, "mute", 0.0),
    Planned(42, DrillKind.SERVICE, 0.0),
    Planned(52, "resets", 0.0),
    Planned(56, DrillKind.SUPERVISOR, 0.0),
    Planned(68, "expired", 0.0),
    Planned(72, DrillKind.PREEMPT, 0.0),
)


@contextmanager
def obeying(proxy: FaultProxy, folder: Path) -> Iterator[None]:
    """The proxy has the troubles whose files are in `folder`."""
    ended = threading.Event()

    def obey() -> None:
        had: set[str] = set()
        while not ended.wait(0.05):
            wanted = {path.name for path in folder.iterdir()}
            if wanted != had:
                proxy.clear()
                for name in wanted:
                    proxy.inject(TROUBLES[name])
                had = wanted

    thread = threading.Thread(target=obey)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def write_site(path: Path, folder: Path) -> None:
    """Each trouble for three seconds."""
    faults = {
        name: {
            **{"do": ["touch", str(folder / name)], "undo": ["rm", str(folder / name)]},
            **{"after_s": 3, "restarts": False},
        }
        for name in TROUBLES
    }
    path.write_text(yaml.safe_dump(faults))


def test_nothing_is_lost_whatever_the_server_answers(
    tmp_path: Path, shards: Path, faulty_s3: FaultyS3
) -> None:
    folder, site, schedule = (tmp_path / name for name in ("wanted", "site.yaml", "faults.jsonl"))
    folder.mkdir()
    write_site(site, folder)
    save_schedule(schedule, SCHEDULE)
    command = [
        *(HPCKIT, "drill", "campaign", f"--folder={tmp_path / 'c'}", f"--replay={schedule}"),
        *(f"--site={site}", f"--minutes={STEPS * 0.2 / 60}", "--json"),
        *("data=shards", f"data.shards={shards}", "checkpoint.every_steps=5"),
        f"checkpoint.url={faulty_s3.place.url}",
    ]
    try:
        with obeying(faulty_s3.proxy, folder):
            done = subprocess.run(
                command,
                env={**os.environ, **faulty_s3.place.env},
                capture_output=True,
                text=True,
                timeout=550,
                check=False,
            )
    finally:
        for runs in tmp_path.glob("c/**/campaign-*"):
            end_leftovers(runs.parent, "campaign-*")
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout)
    assert (result["problems"], result["faults"], result["steps"]) == ([], len(SCHEDULE), STEPS)
    met = {type(request.fault) for request in faulty_s3.proxy.seen if request.fault is not None}
    assert met == {type(trouble) for trouble in TROUBLES.values()}
    assert (
        max(
            info.step
            for info in list_checkpoints(faulty_s3.direct.url, options=faulty_s3.direct.options)
        )
        == STEPS
    )
