"""Measurement of a step's time: step phases, sampled traces, cost of communication, stragglers and
the profiler. Imported by run_loop, metrics and parallel; imports none of them, except
parallel.collectives."""
