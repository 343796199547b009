"""The suspect list of a site: nodes that runs have excluded, in a folder that all runs of a user or
of a group read. Imports hpckit.slurm and the packages below it."""
