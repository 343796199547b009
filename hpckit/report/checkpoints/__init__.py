"""The words of plans and comparisons of checkpoints, which commands and pages share."""
