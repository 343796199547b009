"""What is known of the evaluations of a run: evaluation_records reads it, and evaluation_lines
makes lines and curves of it."""
