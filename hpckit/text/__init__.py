"""Texts for numbers, sizes and times, and values that JSON can hold. Imports nothing of hpckit;
cli, report and planner import it."""
