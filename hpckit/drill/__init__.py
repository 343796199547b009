"""Faults on purpose: one in a run of the user's, or a campaign of them in runs of its own."""
