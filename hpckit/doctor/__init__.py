"""Checks of a site before the first job: Slurm's settings, a node, folders, the store, the
installation. It imports submit, slurm, config and system; init and cli import it."""
