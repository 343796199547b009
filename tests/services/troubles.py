"""A bucket with troubles that a campaign causes: a proxy that obeys files, and the site file that
makes and removes them.

    .venv/bin/python -m tests.services.troubles troubles --upstream http://127.0.0.1:9000

serves until Ctrl-C, and says how a campaign on this machine meets it:

    AWS_ENDPOINT_URL=http://127.0.0.1:PORT hpckit drill campaign --site troubles/faults.yaml \\
        checkpoint.url=s3://bucket/prefix
"""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from tests.services.fault_proxy import FaultProxy, fault_proxy
from tests.services.faults import EXPIRED_TOKEN, SLOW_DOWN, Delay, Fault, Hang, LoseReply, Reset

TROUBLES: dict[str, Fault] = {
    "busy": SLOW_DOWN,
    "resets": Reset(),
    "stuck": Hang(2.0),
    "expired": EXPIRED_TOKEN,
    "mute": LoseReply(),
    "late": Delay(1.0),
}
"""By the names that faults have in a campaign."""
FOR_S = 3
_POLL_S = 0.05


def write_site(folder: Path) -> Path:
    """A site file in `folder`: each trouble for `FOR_S`."""
    wanted = folder / "wanted"
    wanted.mkdir(parents=True, exist_ok=True)
    faults = {
        name: {
            **{"do": ["touch", f"wanted/{name}"], "undo": ["rm", f"wanted/{name}"]},
            **{"after_s": FOR_S, "restarts": False},
        }
        for name in TROUBLES
    }
    path = folder / "faults.yaml"
    path.write_text(yaml.safe_dump(faults))
    return path


@contextmanager
def obeying(proxy: FaultProxy, folder: Path) -> Iterator[None]:
    """The proxy has the troubles that the site file in `folder` asks for."""
    ended = threading.Event()

    def obey() -> None:
        had: set[str] = set()
        while not ended.wait(_POLL_S):
            wanted = {path.name for path in (folder / "wanted").iterdir()} & TROUBLES.keys()
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


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="for the site file; made if it is not there")
    parser.add_argument("--upstream", required=True, help="http:// endpoint of the real server")
    given = parser.parse_args(arguments)
    site = write_site(given.folder)
    with fault_proxy(given.upstream) as proxy, obeying(proxy, given.folder):
        print(f"AWS_ENDPOINT_URL={proxy.endpoint} hpckit drill campaign --site {site}", flush=True)
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            return 0
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
