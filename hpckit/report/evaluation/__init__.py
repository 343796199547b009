"""What is known of the evaluations of a run: evaluation_records reads it, and evaluation_lines
makes lines and curves of it. evaluation, cli and the other rooms of report import it."""
