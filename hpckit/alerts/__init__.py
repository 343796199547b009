"""Messages to people about a run, by webhooks and e-mail: what is reported, how often, and how it
is sent without delaying the run. Only `hpckit.supervisor`, `hpckit.submit.preflight` and
`hpckit.cli.alerts` import it."""
