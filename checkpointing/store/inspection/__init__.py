"""Answers questions about checkpoints without changing them: verify, diff, space; the CLI and
reports import it."""
