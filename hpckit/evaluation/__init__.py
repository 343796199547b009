"""The evaluation of checkpoints beside training. evaluation_watch is a thread of the supervisor,
which submits what evaluation_plan decides by evaluation_jobs; evaluation_job is the process that is
submitted, and evaluation_worker the one that has the model. Only `hpckit.supervisor` and
`hpckit.cli.evaluation` import it."""
