"""`events.jsonl`: the event log, the order of clocks, validation of events, and names of step
phases and ends. Imports hpckit.rundir and the packages below it."""
