"""Drills: the kinds of faults, their planning for a run, and their injection. Imports supervisor,
agent, trainer, report, planner and below."""
