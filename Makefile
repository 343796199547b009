# make demo    set up, then train, be preempted twice and resume, on this machine
# make test    set up, then run all tests
# make setup   only the virtual environment in .venv
# make lint    ruff and mypy
# make clean   remove what the above made; runs/ stays

# The first Python on the path that runs and is new enough.
PYTHON ?= $(shell for python in python3 python3.11 python3.12 python3.13; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && \
	echo $$python && break; done)
VENV := .venv
BIN := $(VENV)/bin

.PHONY: setup demo test lint clean

setup: $(VENV)/ready

$(VENV)/ready: pyproject.toml constraints.txt
	@[ -n "$(PYTHON)" ] || { echo "hpckit needs Python 3.11 or newer; say make PYTHON=/path/to/it" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || $(MAKE) --no-print-directory python-venv
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

# Debian and Ubuntu ship Python without the part that makes virtual environments.
.PHONY: python-venv
python-venv:
	@[ "$$(id -u)" = 0 ] || { echo "run as root once: apt-get install python3-venv" >&2; exit 1; }
	apt-get update -qq
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends python3-venv

demo: setup
	$(BIN)/python launch.py experiment=demo --fresh

test: setup
	$(BIN)/python -m pytest $(PYTEST_ARGS)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
