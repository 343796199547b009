"""Answers questions about checkpoints without changing them: verify, diff, space."""
