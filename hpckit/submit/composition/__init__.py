"""What Hydra does here: overrides and config files become nested dicts. `hydra_values` is the way
that explains errors, and `quick_composition` the quick one of a process beside a command. Of these
modules none imports pydantic or the spec, so that a process that only composes starts quickly. Only
`hpckit.submit` and the CLI import them."""
