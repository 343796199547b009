"""Numbers that no config says and that are assumed, with where they come from."""

from __future__ import annotations

UTILISATION = 0.4
"""Share of a card's peak that is reached while it computes. Of whole steps, Chowdhery et al. 2022
(table 3) report model FLOPs utilisations of 0.21 to 0.46, Grattafiori et al. 2024 (table 4) 0.38 to
0.43."""
LINK = 0.8
"""Share of a link's rate that collectives reach."""
HOST_MEMORY_GBPS = 38.0
"""GB/s of its host's memory that an optimizer reaches whose state is there, of each GPU: half of an
eighth of 614, which are two Xeons of a DGX H100 with eight channels of DDR5-4800 each."""
CUDA_GIB = 2.0
"""Of a card's memory, for CUDA's context, NCCL's buffers and the workspaces of kernels."""
FRAGMENTS = 0.05
"""Share of a card's memory that is lost to gaps between tensors, and to what an estimate misses."""
NODE_MTBF_HOURS = 6300.0
"""Between two failures of a node of 8 GPUs: 419 unexpected interruptions in 54 days on 16,384 H100
(Grattafiori et al. 2024, section 3.3.4) are one in 6,335 hours of each node."""
STORAGE_GBPS = 10.0
"""GB/s of the store of checkpoints, for all ranks together."""
RESTART_S = 180.0
"""Seconds from a failure to the next step: found, started again, restored."""
