"""Checks of a site before the first job: Slurm's settings, a node, folders, the store, the
installation. Imports submit, slurm, config, system; init and cli import it."""
