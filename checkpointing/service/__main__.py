"""The service's process: `python -m checkpointing.service SOCKET`, its configuration on stdin.

Says in one line of JSON on stdout whether it is ready. Leaves its starter's session, so that what
ends a job's trainers does not end it; ends by itself once nobody needs it any more.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import signal
import sys
import threading
import time
from pathlib import Path

from checkpointing.errors import CheckpointError
from checkpointing.service.config import Config, load
from checkpointing.service.server import Server
from checkpointing.service.service import Service

logger = logging.getLogger("checkpointing")

POLL_S = 0.1
UNUSED_S = 60.0  # after which a service that nobody joined ends


def main(path: Path, *, foreground: bool) -> int:
    os.umask(0o077)
    config = load(sys.stdin.read())
    if not foreground and os.fork():
        os._exit(0)  # its starter has no child to reap, and does not wait for one
    if not foreground:
        os.setsid()
    log = Path(config.log) if config.log else path.with_suffix(".log")
    _log_to(log)
    lock = os.open(path.with_suffix(".lock"), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        _say(ready=False, error=None)  # another one is there, or about to be
        return 0
    try:
        server, service = _open(config, path)
    except (CheckpointError, OSError, ValueError) as error:
        _say(ready=False, error=str(error))
        return 1
    _say(ready=True, error=None)
    went_well = _serve(server, service, _told_to_end())
    if went_well and not config.log:
        log.unlink(missing_ok=True)
    path.with_suffix(".lock").unlink(missing_ok=True)
    logging.shutdown()
    os._exit(0)  # a thread may hang in a dead store


def _open(config: Config, path: Path) -> tuple[Server, Service]:
    os.nice(config.budget.nice)
    if config.budget.cpus:
        os.sched_setaffinity(0, config.budget.cpus)
    service = Service(config)
    path.unlink(missing_ok=True)  # of a service that was killed: the lock says that it is gone
    return Server(service, path), service


def _serve(server: Server, service: Service, told: threading.Event) -> bool:
    """Until nobody needs it; whether all was saved."""
    started_s = alone_s = time.monotonic()
    joined = False
    while not told.wait(POLL_S):
        now_s = time.monotonic()
        if not service.hall.is_alone():
            joined, alone_s = True, now_s
        elif service.hall.is_empty():
            if joined or now_s - started_s > UNUSED_S:
                break
        elif service.hall.is_idle() and now_s - alone_s > service.config.linger_s:
            logger.info("no trainer has come back for %.0f s", now_s - alone_s)
            break
    server.close()
    if told.is_set():
        service.drain(service.config.drain_s)
    is_idle = service.hall.is_idle()
    if not is_idle:
        logger.error("ended with unsaved snapshots: %s", service.hall.status())
    service.close()
    return is_idle


def _told_to_end() -> threading.Event:
    told = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: told.set())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: trainers say goodbye
    return told


def _log_to(path: Path) -> None:
    fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC, 0o600)
    os.dup2(fd, 2)
    logging.basicConfig(
        stream=os.fdopen(fd, "w"),
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(process)d %(message)s",
    )


def _say(*, ready: bool, error: str | None) -> None:
    os.write(1, json.dumps({"ready": ready, "error": error}).encode() + b"\n")
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), foreground="--foreground" in sys.argv[2:]))
