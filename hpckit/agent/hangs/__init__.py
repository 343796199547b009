"""Detection of hung and lost workers by the heartbeat table, with dumps of their stacks and NCCL
flight records. Only `hpckit.agent` imports it."""
