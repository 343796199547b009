"""A campaign on a bucket whose server is busy, resets, hangs, and knows the key no more, while
ranks and supervisors are killed: nothing is lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

from checkpointing import list_checkpoints
from hpckit.faults.campaign.fault_schedule import ScheduledFault, save_schedule
from hpckit.faults.fault_plan import DrillKind
from hpckit.faults.site_faults import load_site
from tests.integration.cli.run_commands import HPCKIT
from tests.integration.run.runs import REPO, end_leftovers
from tests.services.fixtures import FaultyS3
from tests.services.s3 import S3Server
from tests.services.troubles import TROUBLES, obeying, write_site

STEPS = 75
SCHEDULE = (
    ScheduledFault(8, "busy", 0.0),
    ScheduledFault(12, DrillKind.WORKER, 0.9),
    ScheduledFault(22, "stuck", 0.0),
    ScheduledFault(32, "mute", 0.0),
    ScheduledFault(36, DrillKind.SERVICE, 0.0),
    ScheduledFault(45, "resets", 0.0),
    ScheduledFault(48, DrillKind.SUPERVISOR, 0.0),
    ScheduledFault(58, "expired", 0.0),
)
"""Nodes are lost and runs preempted in other campaigns."""


def test_nothing_is_lost_whatever_the_server_answers(
    tmp_path: Path, shards: Path, faulty_s3: FaultyS3
) -> None:
    folder, schedule = tmp_path / "troubles", tmp_path / "faults.jsonl"
    site = write_site(folder)
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
    assert met == {type(TROUBLES[one.kind]) for one in SCHEDULE if one.kind in TROUBLES}
    assert (
        max(
            info.step
            for info in list_checkpoints(faulty_s3.direct.url, options=faulty_s3.direct.options)
        )
        == STEPS
    )


def test_the_command_obeys_its_site_file(tmp_path: Path, s3_server: S3Server) -> None:
    words = [sys.executable, "-m", "tests.services.troubles", str(tmp_path / "t")]
    with subprocess.Popen(
        [*words, f"--upstream={s3_server.http}"], cwd=REPO, stdout=subprocess.PIPE, text=True
    ) as served:
        try:
            assert served.stdout is not None
            said = served.stdout.readline().split()
            endpoint = said[0].removeprefix("AWS_ENDPOINT_URL=")
            site = load_site(Path(said[-1]))
            assert site.faults.keys() == TROUBLES.keys()
            site.play("busy", "here", 0, None)
            assert wait_for_status(endpoint, 503)
            assert site.settle() == []
            assert wait_for_status(endpoint, 200, 403)
        finally:
            served.terminate()


def wait_for_status(url: str, *due: int) -> bool:
    deadline_s = time.monotonic() + 120
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while time.monotonic() < deadline_s:
        try:
            status = opener.open(url, timeout=60).status
        except urllib.error.HTTPError as error:
            status = error.code
        if status in due:
            return True
        time.sleep(0.1)
    return False
