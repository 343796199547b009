"""Times collectives and exchanges between the ranks of a run, as the program that `hpckit bench
collectives` launches, and judges the times without torch."""
