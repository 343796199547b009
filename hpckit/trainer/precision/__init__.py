"""Number formats and their range: fp8 linear layers, fp16 loss scaling, checks for NaN and
infinity, and the canary that compares the first steps of a run with recorded ones. Only
`hpckit.trainer` imports it."""
