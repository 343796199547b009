"""`events.jsonl`: the schema of events, the event log, the order of clocks, validation of
events, and names of step phases and ends. It imports hpckit.rundir, the packages
below it, and checkpointing for its events."""
