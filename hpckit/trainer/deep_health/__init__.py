"""Measurements of all nodes and ranks of a job (`health=deep`, `hpckit health`), and the decision
which of them are wrong or slow. Each rank runs them in a process of its own, before training."""
