"""Probes of a node (GPUs, kernel log, disks, mounts, clock) and pure rules that judge whether it is
healthy."""
