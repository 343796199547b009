"""The checkpoint workloads of MLPerf Storage: their shapes, without torch, and the program that
`hpckit bench mlperf-checkpoint` launches to time them. Only `hpckit.cli.bench` imports it."""
