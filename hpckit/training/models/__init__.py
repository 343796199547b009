"""Models that hpckit brings along."""
