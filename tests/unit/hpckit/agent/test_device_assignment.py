"""Which GPUs there are, and which a node gets."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpckit.agent.device_assignment import Devices, choose_devices, gpu_model, visible_gpus


@pytest.mark.parametrize(
    ("stated", "gpus"),
    [
        ("", ()),
        ("-1", ()),
        ("0", ("0",)),
        ("2,0", ("2", "0")),
        (" 1 , 3 ", ("1", "3")),
        ("GPU-8a2f,MIG-77", ("GPU-8a2f", "MIG-77")),
    ],
)
def test_what_the_environment_states_counts_whatever_the_machine_has(
    tmp_path: Path, stated: str, gpus: tuple[str, ...]
) -> None:
    (tmp_path / "nvidia7").touch()
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": stated}, tmp_path) == gpus


def test_device_files_are_counted_where_nothing_is_stated(tmp_path: Path) -> None:
    assert visible_gpus({}, tmp_path) == ()
    for name in ("nvidia0", "nvidia3", "nvidia10", "nvidiactl", "nvidia-uvm", "null", "xnvidia1"):
        (tmp_path / name).touch()
    assert visible_gpus({}, tmp_path) == ("0", "1", "2")  # CUDA numbers what it sees from 0


def test_the_driver_says_which_gpu_it_is(tmp_path: Path) -> None:
    assert gpu_model(tmp_path / "gpus") is None
    about = tmp_path / "gpus" / "0000:1b:00.0" / "information"
    about.parent.mkdir(parents=True)
    about.write_text("Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 18\n")
    assert gpu_model(tmp_path / "gpus") == "NVIDIA H100 80GB HBM3"


@pytest.mark.parametrize(
    ("wanted", "needed", "gpus", "chosen"),
    [
        ("cpu", 1, ["0"], Devices("cpu", (), None)),
        ("auto", 2, ["0", "1"], Devices("cuda", ("0", "1"), None)),
        ("auto", 2, [], Devices("cpu", (), None)),
        ("auto", 2, ["0"], Devices("cpu", (), "on the CPU: 2 workers, but 1 GPU on this node")),
        ("cuda", 1, ["3", "5"], Devices("cuda", ("3", "5"), None)),
    ],
)
def test_what_workers_compute_on(
    wanted: str, needed: int, gpus: list[str], chosen: Devices
) -> None:
    assert choose_devices(wanted, needed, gpus) == chosen


def test_cuda_without_a_gpu_for_every_worker_is_refused() -> None:
    with pytest.raises(ValueError, match=r"cluster\.device.* 3 workers, but 2 GPUs"):
        choose_devices("cuda", 3, ["0", "1"])


@given(nodes=st.integers(1, 8), per_node=st.integers(1, 8), spare=st.integers(0, 3))
def test_each_gpu_goes_to_one_node_and_each_node_gets_its_number(
    nodes: int, per_node: int, spare: int
) -> None:
    devices = choose_devices(
        "cuda", nodes * per_node, [f"GPU-{n}" for n in range(nodes * per_node + spare)]
    )
    shares = [devices.of_node(node, per_node).split(",") for node in range(nodes)]
    assert [len(share) for share in shares] == [per_node] * nodes
    assert [gpu for share in shares for gpu in share] == list(devices.visible[: nodes * per_node])


def test_on_the_cpu_a_node_sees_no_gpu() -> None:
    assert choose_devices("cpu", 2, ["0", "1"]).of_node(1, 1) == ""
