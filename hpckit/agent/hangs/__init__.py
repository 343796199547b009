"""Hung and lost workers are detected here from the heartbeat table, and their stacks and NCCL
flight records are dumped; only hpckit.agent imports it."""
