"""Treats the ranks of a job as one group: how they agree, which of them share a node, at which
address it is reached, and how all of them learn that one has failed. Of the other folders it
imports `staging` alone."""
