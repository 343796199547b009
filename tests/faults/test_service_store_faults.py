"""Training with its checkpoints in S3 while the network fails, with the node's service in between:
training goes on, what happens is said and counted, and no checkpoint is lost."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from checkpointing import Checkpoint, Checkpointer, SaveError, Store
from checkpointing.store.catalog import committed
from checkpointing.store.inspection.integrity_check import verify
from tests.integration.checkpoint.single_process_saves import die
from tests.integration.cli.ckpt_commands import ckpt as command
from tests.integration.rank_worlds import Recorder
from tests.integration.service.service_nodes import end_all, memfds, until
from tests.services import faults
from tests.services.fixtures import FaultyS3

QUICK = {"timeout_s": 2.0, "budget_s": 4.0}  # a client that has little patience
PATIENT = {"timeout_s": 2.0, "budget_s": 120.0}  # one whose requests are soon sent again, for long
HASTY = {"timeout_s": 2.0, "budget_s": 1.0}  # one that gives up long before training does
WIDTH = 128  # the model has as many rows of as many numbers
STEPS = 40  # that are trained at least while the store takes nothing
GROWTH = 64 << 20  # bytes: many times a snapshot, and far from what forty would take
SLOTS = 2


@pytest.fixture(autouse=True)
def _runtime_of_this_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("HPCKIT_RUNTIME_DIR", str(tmp_path / "rt"))
    yield
    end_all(tmp_path / "rt")


class Training:
    """One process that saves after every step, or tries to."""

    def __init__(
        self, server: FaultyS3, patience: Mapping[str, float] = QUICK, **options: Any
    ) -> None:
        torch.manual_seed(1)
        self.server, self.events, self.step = server, Recorder(), 0
        self.model = nn.Linear(WIDTH, WIDTH, bias=False)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.weights: dict[int, Tensor] = {}  # by step
        self.ckpt = Checkpointer(
            server.place.url,
            run="r",
            options={**server.place.options, **patience},
            slots=SLOTS,
            on_event=self.events,
            **options,
        )

    def go_on(self) -> None:
        """One step, and its save."""
        self.step += 1
        self.model(torch.randn(8, WIDTH)).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.weights[self.step] = self.model.weight.detach().clone()
        self.ckpt.save(self.step, {"model": self.model, "optimizer": self.optimizer})

    def go_on_for(self, seconds: float) -> None:
        """Or until a save is refused."""
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            self.go_on()
            time.sleep(0.01)  # or it would be thousands of steps

    def status(self) -> dict[str, Any]:
        return self.ckpt._client.status()

    def steps(self, kind: str) -> list[int]:
        return [fields["step"] for one, fields in list(self.events) if one == kind]

    def failures(self) -> list[str]:
        return [f["error"] for kind, f in list(self.events) if kind == "checkpoint_failed"]

    def check(self, *steps: int) -> None:
        """These are checkpoints, with what was trained, past the proxy."""
        options = self.server.direct.options
        store = Store.open(self.server.direct.url, options=options)
        found = {one.stored.save.step: one for one in committed(store, "r")[0]}
        assert set(steps) <= set(found)
        for step, one in found.items():
            read = Checkpoint(store, one.stored).read("model/weight")
            assert torch.equal(
                torch.from_numpy(read.copy()).view(torch.float32), self.weights[step]
            )
            assert verify(store, one) == []
        store.close()


def private_bytes(pid: int) -> int:
    """Memory of a process that it shares with nobody."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.findall(r"^RssAnon:\s+(\d+) kB$", status, re.MULTILINE)[0]) << 10


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (faults.Hang(3600.0), "given up after .* tries"),
        (faults.Reset(), "given up after .* tries"),
        (faults.SLOW_DOWN, "given up after .* tries"),
        (faults.EXPIRED_TOKEN, "expired|ExpiredToken"),
    ],
    ids=["hangs", "is away", "is overloaded", "knows the credentials no longer"],
)
def test_training_goes_on_beside_a_store_that(
    fault: faults.Fault, said: str, faulty_s3: FaultyS3
) -> None:
    training = Training(faulty_s3)
    training.go_on()
    training.ckpt.wait()
    before = training.status()
    pid, bytes_before, arenas = before["pid"], private_bytes(before["pid"]), memfds(before["pid"])
    faulty_s3.proxy.inject(fault)
    deadline_s = time.monotonic() + 300.0
    while training.step < STEPS or not training.failures():
        assert time.monotonic() < deadline_s, training.status()
        training.go_on()
        time.sleep(0.01)  # or it would be thousands of steps

    training.ckpt._shipper.settle()  # the last one may be on its way
    status = training.status()
    assert status["pid"] == pid
    assert status["staged"] + status["skipped"] == training.step, "each one is counted"
    assert status["skipped"] == len(training.steps("save_skipped"))
    assert status["dropped"] == len(training.steps("save_dropped"))
    assert status["skipped"] + status["dropped"] > 0
    assert status["lag_s"] > 0.0
    assert status["last"]["step"] == 1
    assert memfds(pid) == arenas, "no other memory than the slots"
    assert [len(rank["slots"]) for rank in status["ranks"]] == [SLOTS]
    assert private_bytes(pid) < bytes_before + GROWTH
    assert all(re.search(said, text) for text in training.failures()), training.failures()
    told = command("status")
    assert told.exit_code == 1
    assert re.search(said, " ".join(told.stderr.split()))
    assert faulty_s3.place.secret_key not in str(status) + told.output + str(training.failures())
    training.check(1)

    newest = max(training.steps("checkpoint_staged"))
    faulty_s3.proxy.clear()
    until(lambda: newest in training.steps("checkpoint_committed"), f"step {newest} is durable")
    assert training.status()["error"] is None
    training.go_on()
    training.ckpt.close()
    training.check(1, newest, training.step)


def test_what_passes_is_not_even_noticed(faulty_s3: FaultyS3) -> None:
    training = Training(faulty_s3, PATIENT)
    passing: list[tuple[faults.Fault, str, str]] = [
        (faults.SLOW_DOWN, "PUT", "packs/"),
        (faults.INTERNAL_ERROR, "PUT", "leases/"),
        (faults.Reset(), "PUT", "parts/"),
        (faults.ResetUpload(1000), "PUT", "packs/"),
        (faults.LoseReply(), "PUT", "steps/"),
        (faults.Hang(3600.0), "PUT", "parts/"),
        (faults.Stall(20, 3600.0), "GET", "list-type"),
    ]
    for fault, method, key in passing:
        rule = faulty_s3.proxy.inject(fault, method=method, key=key, times=1)
        training.go_on()
        training.ckpt.wait()
        assert rule.hits == 1, fault
    assert training.failures() == []
    assert training.status()["failed"] == 0
    training.ckpt.close()
    training.check(*range(1, len(passing) + 1))


def test_training_ends_when_nothing_becomes_durable_for_too_long(faulty_s3: FaultyS3) -> None:
    training = Training(faulty_s3, HASTY, max_unsaved=0.25)
    training.go_on()
    training.ckpt.wait()
    faulty_s3.proxy.inject(faults.SLOW_DOWN)
    with pytest.raises(SaveError, match=r"durable for .* minutes, but at most 0\.25 .* given up"):
        training.go_on_for(300.0)
    newest = max(training.steps("checkpoint_staged"))
    faulty_s3.proxy.clear()
    until(lambda: newest in training.steps("checkpoint_committed"), f"step {newest} is durable")
    training.go_on()
    training.ckpt.close()
    training.check(1, newest, training.step)


def test_who_comes_with_other_credentials_has_what_was_left_written_by_them(
    faulty_s3: FaultyS3,
) -> None:
    """Credentials are options of the store, as the endpoint is: the proxy's refuses for ever."""
    old = Training(faulty_s3)
    old.go_on()
    old.ckpt.wait()
    faulty_s3.proxy.inject(faults.EXPIRED_TOKEN)
    old.go_on()
    until(lambda: bool(old.failures()), "it is told")
    pid = old.status()["pid"]
    die(old.ckpt)
    new = Training(FaultyS3(faulty_s3.proxy, faulty_s3.direct, faulty_s3.direct))
    restored = new.ckpt.restore({"model": new.model, "optimizer": new.optimizer})
    assert restored == 2
    assert torch.equal(new.model.weight, old.weights[2])
    assert new.status()["pid"] == pid
    new.step, new.weights = 2, old.weights
    new.ckpt.wait()
    new.go_on()
    new.ckpt.close()
    new.check(1, 2, 3)
