"""Faults on purpose in a run: which there are, what each does to whom, and their injection. Imports
supervisor, agent, trainer, report, planner and below. Imported by cli."""
