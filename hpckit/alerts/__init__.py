"""Messages to people about a run, by webhooks and e-mail: what is reported, how often, and how it
is sent without delaying the run. The supervisor, the checks of a submission and hpckit.cli import
this package."""
