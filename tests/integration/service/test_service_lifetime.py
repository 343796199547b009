"""How checkpoint services begin and end, who may speak to them, and `hpckit ckpt status`."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pytest

from checkpointing.errors import ServiceError
from checkpointing.service.client import service_client, service_lookup, service_start
from checkpointing.service.client.early_start import start_early
from checkpointing.service.client.service_start import connect
from checkpointing.service.client.service_stop import end_services, report_lost_ranks
from checkpointing.service.config import ServiceConfig
from checkpointing.service.protocol.socket_address import address
from tests.integration.cli.ckpt_commands import ckpt, document, ok
from tests.integration.service.service_nodes import (
    RUN,
    Nodes,
    Trainer,
    assert_exact,
    assert_nothing_held,
    config,
    generation,
    is_gone,
    kill,
    memfds,
    nodes_at,
    pid_of,
    saved,
    services,
    status_of,
    until,
)
from tests.services.fault_fs import READ_ONLY, FaultFs
from tests.stopped_processes import stop

NOBODY = 65534
SECRET = "not-for-anybody"


@pytest.fixture(autouse=True)
def _columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")


def one(config: ServiceConfig, **changes: int) -> Trainer:
    trainer = Trainer(config, 0, frozenset([0]), generation(1), **changes)
    trainer.register_arena()
    return trainer


def assert_nothing_left(runtime: Path) -> None:
    until(lambda: not services(runtime), "all services have ended")
    assert list(runtime.iterdir()) == []
    assert_nothing_held()


# ends


def test_the_end_of_a_run_removes_what_a_killed_service_left(store: Path, runtime: Path) -> None:
    killed, alive = one(config(store)), one(config(store, "b"))
    other = address("another run's", "r2")
    other.touch()
    pid = pid_of(config(store))
    assert pid is not None
    stop(pid)  # it does not see its trainer go, and end by itself
    killed.close(goodbye=False)  # or it might start another one
    os.kill(pid, signal.SIGKILL)
    until(lambda: is_gone(pid), "it has died")
    sockets = {address(str(store), RUN, node) for node in "ab"}
    assert sockets <= set(runtime.iterdir())
    assert end_services("another store", RUN, 1.0), "of which there is none"
    assert sockets & set(runtime.iterdir()) == {address(str(store), RUN, "b")}, "it is alive"
    assert other.exists()
    other.unlink()
    alive.close()
    until(lambda: not services(runtime), "the other one has ended, too")
    left = {path.suffix for path in runtime.iterdir()}
    assert left == {".log"}, "what the killed one said"
    assert_nothing_held()


def test_after_all_goodbyes_nothing_is_left(store: Path, runtime: Path) -> None:
    nodes = Nodes.start({"a": config(store)}, per_node=2)
    nodes.save(1)
    nodes.await_commit(1)
    pid = pid_of(nodes.configs["a"])
    assert pid is not None
    assert memfds(pid) != []
    nodes.trainers[0].close()
    assert status_of(nodes.configs["a"]) is not None  # the other one is here
    nodes.trainers[1].close()
    until(lambda: is_gone(pid), "the service has ended")
    assert_nothing_left(runtime)


def test_it_ends_when_no_trainer_comes_back(store: Path, runtime: Path) -> None:
    trainer = one(config(store, linger_s=0.5, bytes_per_s=float(1 << 20)), rows=512)
    trainer.save_when_possible(1)
    trainer.close(goodbye=False)
    assert_nothing_left(runtime)
    assert_exact(store, 1, world_size=1, rows=512)


def test_told_to_end_it_writes_first_what_it_has(store: Path, runtime: Path) -> None:
    there = config(store, bytes_per_s=float(1 << 20))
    trainer = one(there, rows=512)
    trainer.save_when_possible(1)
    trainer.close(goodbye=False)
    kill(there, signal.SIGTERM)
    assert_nothing_left(runtime)
    assert_exact(store, 1, world_size=1, rows=512)


def test_told_to_end_it_says_what_it_could_not_write(
    store: Path, runtime: Path, faulty_folder: FaultFs
) -> None:
    there = config(faulty_folder.path / "s", drain_s=1.0)
    trainer = one(there)
    trainer.save_when_possible(1)
    trainer.hears("committed", 1)
    faulty_folder.set_rules(READ_ONLY)
    trainer.save_when_possible(2)
    trainer.hears("failed", 2)
    trainer.close(goodbye=False)
    kill(there, signal.SIGTERM)
    until(lambda: not services(runtime), "it has ended")
    (log,) = runtime.iterdir()  # the rest is gone
    assert "ended before step 2 of ranks [0] was saved" in log.read_text()
    assert "Read-only" in log.read_text()


@pytest.mark.parametrize("lost", [0, 1], ids=["that leads", "another"])
def test_what_has_lost_a_part_with_its_node_is_not_waited_for(
    store: Path, runtime: Path, lost: int
) -> None:
    nodes = Nodes.start(nodes_at(store, linger_s=3600.0), per_node=1)
    nodes.save(1)
    nodes.await_commit(1)
    gone, here = nodes.trainers[lost], nodes.trainers[1 - lost]
    gone.close(goodbye=False)
    kill(nodes.configs["ab"[lost]])
    here.save_when_possible(2)
    here.close(goodbye=False)
    assert end_services(str(store), RUN, 3600.0, lost=[lost])
    assert not services(runtime)
    assert max(saved(store)) == 1


def test_what_is_found_lost_while_it_is_waited_for_is_given_up(store: Path, runtime: Path) -> None:
    nodes = Nodes.start(nodes_at(store, linger_s=3600.0), per_node=1)
    gone, here = nodes.trainers
    gone.close(goodbye=False)
    kill(nodes.configs["a"])
    here.save_when_possible(1)
    here.close(goodbye=False)
    with ThreadPoolExecutor(1) as pool:
        end = pool.submit(end_services, str(store), RUN, 3600.0)
        assert not wait([end], 1.0).done, "it waits for the part of the other"
        report_lost_ranks(str(store), RUN, [0])
        assert end.result()
    assert not services(runtime)


def test_what_a_lost_node_has_written_before_is_not_given_up(store: Path, runtime: Path) -> None:
    nodes = Nodes.start(nodes_at(store), per_node=2)
    first, late, *gone = nodes.trainers
    for trainer in (first, *gone):
        trainer.save_when_possible(1)
    for trainer in gone:
        trainer.hears("written", 1)
        trainer.close(goodbye=False)
    kill(nodes.configs["b"])
    report_lost_ranks(str(store), RUN, [2, 3])
    late.save_when_possible(1)
    for trainer in (first, late):
        trainer.close(goodbye=False)
    assert end_services(str(store), RUN, 3600.0, lost=[2, 3])
    assert_exact(store, 1, world_size=4)


def test_a_last_save_while_it_drains_is_taken(store: Path, runtime: Path) -> None:
    """Preemption tells everybody at once, and trainers save once more then."""
    there = config(store)
    trainer = one(there)
    trainer.save_when_possible(1)
    trainer.hears("committed", 1)
    pid = kill(there, signal.SIGTERM)
    until(lambda: (status_of(there) or {})["draining"], "it drains")
    assert trainer.save(2)
    trainer.hears("committed", 2)
    assert trainer.kinds("service_lost") == []
    assert pid_of(there) == pid
    trainer.close()
    assert_nothing_left(runtime)


def test_a_trainer_lives_through_the_end_of_its_service(store: Path, runtime: Path) -> None:
    there = config(store, drain_s=0.2)
    trainer = one(there)
    trainer.save_when_possible(1)
    trainer.hears("committed", 1)
    pid = kill(there, signal.SIGTERM)
    until(lambda: len(trainer.kinds("service_lost")) == 1, "the service ends")
    trainer.save_when_possible(2)
    trainer.hears("committed", 2)
    assert pid_of(there) not in (None, pid)
    trainer.close()
    assert_nothing_left(runtime)


# begins


def test_trainers_that_come_at_once_find_one_service_which_one_of_them_starts(
    store: Path, runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, made = config(store), generation(4)
    barrier = threading.Barrier(4)
    trainers: list[Trainer] = []
    starts, start_one = list[Path](), service_start._start

    def counted(config: ServiceConfig, path: Path) -> bool:
        starts.append(path)
        return start_one(config, path)

    monkeypatch.setattr(service_start, "_start", counted)

    def start(rank: int) -> None:
        barrier.wait()
        trainers.append(Trainer(there, rank, frozenset(range(4)), made))

    threads = [threading.Thread(target=start, args=(rank,)) for rank in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(trainers) == 4
    assert len({trainer.client.status()["pid"] for trainer in trainers}) == 1
    assert len(services(runtime)) == 1
    assert starts == [address(str(store), RUN, "a")]
    for trainer in trainers:
        trainer.close()
    assert_nothing_left(runtime)


def test_a_service_that_was_started_early_is_the_one_that_a_trainer_joins(
    store: Path, runtime: Path
) -> None:
    there = config(store)
    start_early(there).join()
    pid = pid_of(there)
    assert pid
    trainer = one(there)
    assert pid_of(there) == pid
    trainer.close()
    assert_nothing_left(runtime)


def test_who_joins_says_why_a_service_could_not_start_early(runtime: Path) -> None:
    there = config("nonsense://there")
    start_early(there).join()
    with pytest.raises(ServiceError, match=r"cannot start: .*nonsense"):
        one(there)
    assert_nothing_left(runtime)


def test_trainers_that_come_while_a_service_is_ending(store: Path, runtime: Path) -> None:
    there = config(store)
    for step in range(1, 5):
        trainer = one(there)
        trainer.save_when_possible(step)
        trainer.hears("committed", step)
        trainer.close()
        time.sleep(0.03 * step)  # at different points of its end
    assert_nothing_left(runtime)
    assert sorted(saved(store)) == list(range(1, 5))


def test_what_a_killed_service_left_is_no_obstacle(store: Path, runtime: Path) -> None:
    there = config(store)
    trainer = one(there)
    pid = pid_of(there)
    assert pid is not None
    stop(pid)  # it does not see its trainer go, and end by itself
    trainer.close(goodbye=False)
    os.kill(pid, signal.SIGKILL)
    until(lambda: is_gone(pid), "it is dead")
    assert len(list(runtime.iterdir())) == 3  # socket, lock, log
    again = one(there)
    again.save_when_possible(1)
    again.hears("committed", 1)
    again.close()
    assert_nothing_left(runtime)


def test_why_it_cannot_start(folder: Path, runtime: Path) -> None:
    with pytest.raises(ServiceError, match=r"cannot start: .*nonsense"):
        connect(config("nonsense://there"))
    assert_nothing_left(runtime)


# permissions


def test_all_is_for_the_user_alone_but_the_store_obeys_the_umask(
    store: Path, runtime: Path
) -> None:
    mask = os.umask(0o027)
    try:
        trainer = one(config(store, options={}))
    finally:
        os.umask(mask)
    trainer.save_when_possible(1)
    trainer.hears("committed", 1)
    assert stat.S_IMODE(runtime.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in runtime.iterdir()} == {0o600}
    (manifest,) = (store / "runs" / RUN / "steps").iterdir()
    assert stat.S_IMODE(manifest.stat().st_mode) == 0o640
    trainer.close()


def test_secrets_of_the_store_are_on_no_command_line_in_no_log_and_no_status(
    runtime: Path, folder: Path
) -> None:
    options = {
        "endpoint": "http://127.0.0.1:9",
        "access_key_id": "key",
        "secret_access_key": SECRET,
        "region": "us-east-1",
    }
    there = config("s3://bucket/x", options=options)
    trainer = one(there)
    trainer.save_when_possible(1)
    pid = pid_of(there)
    assert SECRET.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()
    assert SECRET.encode() not in Path(f"/proc/{pid}/environ").read_bytes()
    assert SECRET not in json.dumps(trainer.client.status())
    assert all(SECRET not in path.read_text() for path in runtime.glob("*.log"))
    assert SECRET not in repr(there)
    assert SECRET not in ckpt("status", "--json").stdout


def test_another_user_is_refused(store: Path, runtime: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can play another user; run the tests as root")
    there = config(store)
    trainer = one(there)
    socket = address(there.url, there.run, there.node)
    runtime.chmod(0o711)
    socket.chmod(0o666)
    code = (
        "import socket,sys; s=socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); "
        "print(s.recv(1))"
    )
    done = subprocess.run(
        ["/usr/bin/python3", "-I", "-S", "-c", code, socket.name],
        cwd=runtime,
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "b''\n", done.stderr
    assert (
        f"of user {NOBODY} is at the other end and is refused"
        in socket.with_suffix(".log").read_text()
    )
    runtime.chmod(0o700)
    trainer.close()


# hpckit ckpt status


def test_a_service_that_does_not_answer_is_waited_for_once(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = config(store)
    trainer = one(there)
    pid = pid_of(there)
    assert pid is not None
    stop(pid)
    monkeypatch.setattr(service_client, "CLAIM_S", 0.2)
    assert not trainer.save(1)
    assert trainer.client.is_silent
    monkeypatch.setattr(service_client, "CLAIM_S", 3600.0)  # longer than this test may take
    assert not trainer.save(2)
    os.kill(pid, signal.SIGCONT)
    until(lambda: not trainer.client.is_silent, "it answers what it was asked before")
    assert trainer.save(3)
    trainer.hears("committed", 3)
    assert set(saved(store)) == {3}


def test_status_of_none(folder: Path) -> None:
    assert "no checkpoint service on this node" in ok("status")
    assert document("status") == {"services": [], "silent": []}
    assert ckpt("status", RUN).exit_code == 3
    assert not (folder / "rt").exists()  # looking makes nothing


def test_status_of_one_that_is_well(store: Path) -> None:
    nodes = Nodes.start({"a": config(store)}, per_node=2)
    nodes.save(7)
    nodes.await_commit(7)
    text = ok("status", RUN)
    assert max(map(len, text.splitlines()[:2])) <= 100
    header, row, told = text.splitlines()
    assert header.split() == ["run", "pid", "ranks", "writing", "waiting", "lag", "rate", "durable"]
    assert row.split()[:5] == [RUN, str(pid_of(nodes.configs["a"])), "2", "of", "2"]
    assert "7, " in row
    assert f"run {RUN} in {store}: 1 save since" in told
    (plain,) = document("status", RUN)["services"]
    assert (plain["run"], plain["url"], plain["last"]["step"]) == (RUN, str(store), 7)
    assert ckpt("status", "another").exit_code == 3
    nodes.close()


def test_status_of_one_that_is_not_well(store: Path, faulty_folder: FaultFs) -> None:
    trainer = one(config(faulty_folder.path / "s"))
    trainer.save_when_possible(1)
    trainer.hears("committed", 1)
    faulty_folder.set_rules(READ_ONLY)
    trainer.save_when_possible(2)
    trainer.hears("failed", 2)
    result = ckpt("status")
    assert result.exit_code == 1
    assert "Read-only" in result.stderr
    assert " 2 " in result.stdout.splitlines()[1]  # it waits
    faulty_folder.set_rules()
    trainer.hears("committed", 2)
    assert ckpt("status").exit_code == 0
    trainer.close()


def test_status_says_what_lags(store: Path) -> None:
    trainer = one(config(store, bytes_per_s=2e4), rows=512)
    trainer.save_when_possible(1)
    until(lambda: (status_of(config(store)) or {})["writing"] == 1, "it is written")
    assert ckpt("status", "--max-lag", "1000").exit_code == 0
    result = ckpt("status", "--max-lag", "0")
    assert result.exit_code == 1
    assert "has been waiting for" in result.stderr


def test_status_of_one_that_was_killed_and_of_one_that_hangs(
    store: Path, runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = config(store)
    trainer = one(there)
    pid = pid_of(there)
    assert pid is not None
    stop(pid)  # it does not see its trainer go, and end by itself
    trainer.close(goodbye=False)
    monkeypatch.setattr(service_lookup, "STATUS_S", 0.5)
    result = ckpt("status", RUN)
    assert result.exit_code == 3
    assert "did not answer" in result.stderr
    os.kill(pid, signal.SIGKILL)
    until(lambda: is_gone(pid), "it is dead")
    result = ckpt("status", RUN)
    assert result.exit_code == 3
    assert "it was killed" in result.stderr
    assert ckpt("status").exit_code == 0
