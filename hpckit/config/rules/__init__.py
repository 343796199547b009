"""All rules that refuse a spec, one file per subject, pure. The parser, the planner, submit and the
trainer import them."""
