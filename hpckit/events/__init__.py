"""`events.jsonl`: log, order of clocks, validation of what is read, words of the field for phases
and ends. Imports hpckit.rundir and below."""
