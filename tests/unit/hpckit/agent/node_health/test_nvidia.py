"""What NVIDIA's tools and driver print, read."""

from __future__ import annotations

import pytest

from hpckit.agent.node_health.nvidia import Gpu, Xid, bus_of, hardware_xids, parse_gpus, parse_rows

# As nvidia-smi of R535 and R570 prints it; the last GPU is one without ECC.
GPUS = """\
0, GPU-5f2d1c1e-0d2a-4e6b-9a55-0c8e0a6b7f10, 00000000:3B:00.0, 0, No
1, GPU-77aa0f6c-53c1-4ee4-8a0e-5bb0f7c0e2d1, 00000000:5E:00.0, 2, Yes
2, GPU-0b1c2d3e-4f50-6172-8394-a5b6c7d8e9f0, 00000000:AF:00.0, [Unknown Error], [Unknown Error]
3, GPU-fe0dcba9-8765-4321-0fed-cba987654321, 0001:D8:00.0, [N/A], [N/A]
"""


def test_gpus_are_read_with_what_they_do_not_tell() -> None:
    first, second, third, last = parse_gpus(GPUS)
    assert first == Gpu("0", first.uuid, "0:3b:00", 0, False, None)
    assert (second.ecc_errors, second.is_page_pending, second.broken) == (2, True, None)
    assert (third.ecc_errors, third.broken) == (None, "Unknown Error")
    assert (last.bus, last.ecc_errors, last.is_page_pending) == ("1:d8:00", None, False)
    assert last.broken is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "No devices were found\n",
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure, "
        "that the latest NVIDIA driver is installed, and running.\n",
        'Field "retired_pages.pending" is not a valid field to query.\n',
        "Unable to determine the device handle for GPU0: 0000:3B:00.0: Unknown Error\n",
    ],
)
def test_other_words_are_no_gpus(text: str) -> None:
    assert parse_gpus(text) == []
    assert parse_rows(text) == {}


def test_remapped_rows_are_read_in_both_spellings() -> None:
    found = parse_rows("GPU-a, 0, 0\nGPU-b, 1, 0\nGPU-c, No, Yes\nGPU-d, [N/A], [N/A]\n")
    assert found.keys() == {"GPU-b", "GPU-c"}
    assert "wait for a reset" in found["GPU-b"]
    assert "could not be remapped" in found["GPU-c"]


LOG = """\
[    4.1] NVRM: loading NVIDIA UNIX x86_64 Kernel Module  570.86.15
[ 9120.3] NVRM: Xid (PCI:0000:3b:00): 31, pid=4711, name=python3, Ch 00000010
[ 9121.0] NVRM: Xid (PCI:0000:3b:00): 45, pid=4711, name=python3, Ch 00000010
[ 9200.7] NVRM: GPU at PCI:0000:5e:00: GPU-77aa0f6c-53c1-4ee4-8a0e-5bb0f7c0e2d1
[ 9200.7] NVRM: Xid (PCI:0000:5e:00): 79, pid='<unknown>', GPU has fallen off the bus.
[ 9200.8] NVRM: Xid (PCI:0000:5e:00): 79, pid='<unknown>', GPU has fallen off the bus.
[ 9300.2] NVRM: Xid (PCI:0000:af:00): 63, pid=1896, Row Remapper: New row marked for remapping
[ 9301.5] NVRM: Xid (PCI:0000:af:00): 94, pid=88, Contained: CE User Channel (0x9). RST: No
[ 9305.5] NVRM: Xid (0000:d8:00): 48, An uncorrectable double bit error (DBE) has been detected
"""


def test_xids_that_a_program_may_cause_are_not_the_hardwares() -> None:
    assert hardware_xids(LOG.splitlines()) == [Xid("0:5e:00", 79), Xid("0:d8:00", 48)]


def test_a_gpu_that_was_recovered_is_well_again() -> None:
    changed = "[1] NVRM: Xid (PCI:0000:5e:00): 154, GPU recovery action changed from"
    needed = f"{changed} 0x0 (None) to 0x2 (Node Reboot Required)"
    done = f"{changed} 0x2 (Node Reboot Required) to 0x0 (None)"
    broken, other = Xid("0:5e:00", 79), Xid("0:d8:00", 48)
    assert hardware_xids([*LOG.splitlines(), needed]) == [broken, other]
    assert hardware_xids([*LOG.splitlines(), needed, done]) == [other]
    again = LOG.splitlines()[4]
    assert hardware_xids([*LOG.splitlines(), done, again]) == [other, broken]


def test_a_bus_has_one_name() -> None:
    spellings = ("00000000:3B:00.0", "0000:3b:00", "0000:3B:00.0", "3b:00", "3B:00.0")
    assert {bus_of(text) for text in spellings} == {"0:3b:00"}
    assert bus_of("0001:3b:00") != "0:3b:00"
