"""The rules that refuse a spec, as pure functions, one file per subject."""
