"""Other versions of torch and Python: what `tests/versions.sh` needs."""
