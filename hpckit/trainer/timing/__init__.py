"""The measurement of a step's time: step phases, sampled traces, the cost of communication,
stragglers and the profiler. Of the rooms that import this package it imports parallel.collectives
alone. Only `hpckit.trainer` imports it."""
