"""Access to Slurm (squeue, scontrol, configuration, Gres, pending reasons, excluded nodes) through
pure parsers and thin calls. Imports hpckit.events, hpckit.rundir and the packages below these."""
