"""Real faults are injected here on the machine where their targets run, by `python -m` programs of
their own; hpckit.faults and benchmarks import it."""
