"""Number formats and their range: fp8 linear layers, fp16 loss scaling, checks for NaN and
infinity, and the canary that compares a run's first steps with recorded ones. Imported by run_loop,
device and parallel."""
