"""Every rule that refuses a spec, one file per subject, pure. Imported by the parser, the planner,
submit and the trainer."""
