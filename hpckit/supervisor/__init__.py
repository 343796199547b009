"""The batch process of a job supervises a run: it plays generations, judges how each one ended, and
decides whether another follows; hpckit.submit starts it, and it imports hpckit.agent and
hpckit.slurm, never torch."""
