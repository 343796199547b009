"""What Hydra does here: overrides and config files become nested dicts. Of these modules none
imports pydantic or the spec, so that a process that only composes starts quickly. Only
`hpckit.submit` and the CLI import them."""
