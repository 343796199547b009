"""The rules that refuse a spec, as pure functions, one file per subject. The parser, the planner,
submit and the trainer import them."""
