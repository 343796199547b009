"""Copies the project at submit time, with hard links to unchanged files of the newest earlier
snapshot. hpckit.submit and the CLI import this package, and it imports hpckit.config and
hpckit.rundir only."""
