"""Assumed numbers that no config contains, with their sources."""

from __future__ import annotations

UTILISATION = 0.4
"""Share of a card's peak FLOP/s that is reached while it computes. For whole steps, Chowdhery et
al. 2022 (table 3) report model FLOPs utilisations of 0.21 to 0.46, Grattafiori et al. 2024 (table
4) 0.38 to 0.43."""
LINK = 0.8
"""Share of a link's bandwidth that collectives reach."""
HOST_MEMORY_GBPS = 38.0
"""GB/s of host memory for each GPU that an optimizer reaches whose state is there: half of an
eighth of 614, the bandwidth of the two Xeons of a DGX H100 with eight channels of DDR5-4800
each."""
CUDA_GIB = 2.0
"""GiB of a card's memory for CUDA's context, NCCL's buffers and the workspaces of kernels."""
FRAGMENTS = 0.05
"""Share of a card's memory that is lost to fragmentation, and to what an estimate misses."""
DECODER_ERROR = 0.10
"""Share by which the memory of a decoder may exceed its estimate: the tests allow as much
(`tests/integration/trainer/test_planned_memory.py`)."""
IMAGE_ERROR = 0.05
"""The same for models of images."""
NODE_MTBF_HOURS = 6300.0
"""Hours between two failures of a node of 8 GPUs: 419 unexpected interruptions in 54 days on 16,384
H100 (Grattafiori et al. 2024, section 3.3.4) are one in 6,335 hours of each node."""
STORAGE_GBPS = 10.0
"""GB/s of the checkpoint store, for all ranks together."""
RESTART_S = 180.0
"""Seconds from a failure to the next step: detection, restart, restore."""
