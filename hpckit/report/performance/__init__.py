"""The time of a run's steps by phase, and what limits its speed. It imports history and progress of
report."""
