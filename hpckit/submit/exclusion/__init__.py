"""The nodes that a job is submitted without because the suspect list names them."""
