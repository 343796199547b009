"""Runs the service as a process: one per socket, until no trainer needs it."""

from __future__ import annotations

import json
import logging
import os
import signal
import threading
from pathlib import Path

from checkpointing.errors import CheckpointError
from checkpointing.service.checkpoint_service import CheckpointService
from checkpointing.service.config import ServiceConfig, load
from checkpointing.service.protocol.socket_lock import lock_socket
from checkpointing.service.service_lifetime import why_to_end
from checkpointing.service.trainer_server import TrainerServer

logger = logging.getLogger("checkpointing")

POLL_S = 0.1


def run(path: Path, text: str) -> int:
    """Serve at `path` with the configuration in `text`; return the exit status."""
    try:
        config = load(text)
        lock = lock_socket(path.with_suffix(".lock"))
    except (OSError, ValueError, TypeError, KeyError) as error:
        _report_ready(ready=False, error=repr(error))
        return 1
    if lock is None:
        _report_ready(ready=False, error=None)  # another service is running, starting or ending
        return 0
    log = Path(config.log) if config.log else path.with_suffix(".log")
    try:
        _log_to(log)
        must_end = _must_end_event()
        server, service = _open(config, path)
    except (CheckpointError, OSError) as error:
        _report_ready(ready=False, error=str(error))
        went_well, status = True, 1  # everything has been logged
    else:
        _report_ready(ready=True, error=None)
        went_well, status = _serve(server, service, must_end), 0
    if went_well and not config.log:
        log.unlink(missing_ok=True)
    path.with_suffix(".lock").unlink(missing_ok=True)
    logging.shutdown()
    os._exit(status)  # a thread may hang in a store that does not answer


def _open(config: ServiceConfig, path: Path) -> tuple[TrainerServer, CheckpointService]:
    os.nice(config.budget.nice)
    if config.budget.cpus:
        os.sched_setaffinity(0, config.budget.cpus)
    service = CheckpointService(config)
    service.recover_spool()
    # of a service that was killed: this process holds the lock, so it is gone
    path.unlink(missing_ok=True)
    return TrainerServer(service, path), service


def _serve(server: TrainerServer, service: CheckpointService, must_end: threading.Event) -> bool:
    """Serve until nobody needs the service; return whether all was saved."""
    linger_s = service.config.linger_s
    why = None
    while why is None and not must_end.wait(POLL_S):
        why = service.registry.end_if(lambda now: why_to_end(now, linger_s))
    logger.info("ending: %s", why or "a signal requests it")
    if must_end.is_set():
        service.drain(service.config.drain_s)
    server.close()
    service.spool_rest()
    unsaved = service.registry.unsaved()
    for step, ranks in unsaved.items():
        logger.error("ended before step %d of ranks %s was saved", step, ranks)
    service.close()
    return not unsaved


def _must_end_event() -> threading.Event:
    must_end = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: must_end.set())
    # from a terminal: the trainers disconnect on their own
    for other in (signal.SIGINT, signal.SIGHUP):
        signal.signal(other, signal.SIG_IGN)
    return must_end


def _log_to(path: Path) -> None:
    fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC, 0o600)
    os.dup2(fd, 2)
    logging.basicConfig(
        stream=os.fdopen(fd, "w"),
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(process)d %(message)s",
    )


def _report_ready(*, ready: bool, error: str | None) -> None:
    os.write(1, json.dumps({"ready": ready, "error": error}).encode() + b"\n")
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)
