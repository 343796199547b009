"""The supervisor, the batch process of a job: it runs generations, judges how each one ended and
decides whether another follows. hpckit.submit starts it; it imports hpckit.agent and hpckit.slurm,
never torch."""
