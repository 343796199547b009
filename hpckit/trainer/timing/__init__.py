"""The measurement of a step's time: step phases, sampled traces, the cost of communication,
stragglers and the profiler. This package is imported by the run loop, metrics and parallel, and
imports none of them except parallel.collectives."""
