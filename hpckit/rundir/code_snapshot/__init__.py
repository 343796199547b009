"""Copies the project at submit time, with hard links to unchanged files of the newest earlier
snapshot. It imports hpckit.config and hpckit.rundir only."""
