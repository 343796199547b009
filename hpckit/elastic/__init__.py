"""Keeping a job alive: node agents, their processes, signals and verdicts. Never imports torch."""
