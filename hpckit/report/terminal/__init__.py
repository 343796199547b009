"""A run or a list of runs as text on a terminal (`hpckit status`, `top`, the summary at the end of
a run)."""
