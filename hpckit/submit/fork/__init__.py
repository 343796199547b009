"""Forks: new runs that begin with a checkpoint of another one. fork_request composes and checks the
spec, fork_submission submits it. Only `hpckit.cli.fork` imports it."""
