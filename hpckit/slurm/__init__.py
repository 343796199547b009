"""What Slurm says and is asked (squeue, scontrol, configuration, Gres, pending reasons, nodes to
exclude): pure parsers and thin calls. Imports hpckit.events, hpckit.rundir and below."""
