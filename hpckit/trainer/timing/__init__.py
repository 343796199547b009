"""Where the time of a step goes: phases of a step, sampled traces, cost of communication,
stragglers and the profiler. Imported by run_loop, metrics and parallel; does not import them,
except parallel.collectives."""
