"""What ranks do at a hang: each rank describes itself, and pure functions group the ranks by
likeness and decide which one the others wait for. This package imports no torch."""
