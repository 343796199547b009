"""What is known of the evaluations of a run: evaluation_records reads it, evaluation_table and
evaluation_metrics make text of it. The supervisor's side and the commands import it."""
