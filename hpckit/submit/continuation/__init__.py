"""The way in which a run continues after its job: what Slurm supports, and which way
`launch.continuation=auto` picks."""
