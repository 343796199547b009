"""Checks of a site before the first job: Slurm's settings, a node, folders, the store, the
installation. It imports submit, slurm, config and system. Only `hpckit.init` and `hpckit.cli`
import it."""
