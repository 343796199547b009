"""Numbers, sizes and times in words, and values that JSON can hold. Imports nothing of hpckit; cli,
report and planner import it."""
