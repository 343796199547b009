# make demo       set up, then train, be preempted twice and resume, on this machine
# make test       set up, then run all tests
# make test-torch TORCH_BUILD=2.14.1    what depends on torch, with another build of it
# make test-slurm SLURM=26.05         what depends on Slurm, with a newer release of it, from Debian
# make fresh      make demo on fresh Debian 12 and 13, Ubuntu 22.04 and 24.04, in a chroot each (as root)
# make setup      only the virtual environment in .venv
# make services   only the Debian packages with the servers that tests run against (as root)
# make lint       ruff and mypy
# make wheel      the wheel in dist/
# make release    the wheel and the sdist in dist/, after what is installed from them was checked
# make docs       set up, then build the site of the documentation in site/, its links checked
# make clean      remove what the above made; runs/ stays

# The first Python on the path that runs and is new enough. Ubuntu 22.04 has a candidate of 3.11.0
# among its packages, with which torch does not run.
IS_NEW := import sys; sys.exit(sys.version_info < (3, 11, 0, "final"))
PYTHON ?= $(shell for python in python3 python3.11 python3.12 python3.13 python3.14; do \
	$$python -c '$(IS_NEW)' 2>/dev/null && \
	echo $$python && break; done)
VENV := .venv
BIN := $(VENV)/bin

PIP := $(BIN)/pip --disable-pip-version-check
INSTALL := $(PIP) install --quiet --constraint constraints.txt

# TORCH=cpu demands torch's CPU build, which needs a package index that has it. Without TORCH pip
# takes what it finds: from the public index, on x86-64, the build for CUDA.
TORCH ?=
TORCH_VERSION := $(shell sed -n 's/^torch==//p' constraints.txt)
has_cpu_build = $(PIP) index versions torch 2>/dev/null | grep -qF '$(TORCH_VERSION)+cpu'

# Without what it requires: older datasets than ours, and what is for GPUs alone. Its checkpointing
# needs neither.
TORCHTITAN := torchtitan spmd_types

.PHONY: setup services demo test test-quick test-torch test-slurm fresh lint docs wheel release clean

setup: $(VENV)/ready

# What the tests and linters need, too.
$(VENV)/ready: $(VENV)/ready-run
	@echo "setup: installing what the tests need: 0.7 GB on disk"
	$(INSTALL) --editable '.[dev]'
	$(INSTALL) --no-deps $(TORCHTITAN)
	@touch $@

# What runs need, the demo among them.
$(VENV)/ready-run: pyproject.toml constraints.txt
	@[ -n "$(PYTHON)" ] || { echo '$(OLD_PYTHON)' >&2; exit 1; }
	@$(PYTHON) -c '$(IS_NEW)' || { echo "PYTHON=$(PYTHON) does not run, or is older than 3.11" >&2; exit 1; }
	@[ -z "$(TORCH)" ] || [ "$(TORCH)" = cpu ] || { echo "TORCH=$(TORCH): it can only be cpu" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || $(MAKE) --no-print-directory python-venv
	$(PYTHON) -m venv $(VENV)
	@if $(has_cpu_build); then \
		echo "setup: torch $(TORCH_VERSION) for CPUs and what else runs need: 1.1 GB on disk;"; \
		echo "setup: this took others about a minute"; \
	elif [ "$(TORCH)" = cpu ]; then \
		echo "TORCH=cpu: no package index that pip knows has torch $(TORCH_VERSION)+cpu; name one in" >&2; \
		echo "PIP_EXTRA_INDEX_URL (PyTorch's own has CPU builds), or leave TORCH=cpu out" >&2; \
		exit 1; \
	else \
		echo "setup: torch $(TORCH_VERSION) and what else runs need: on x86-64 that is torch for CUDA, 3 GB to"; \
		echo "setup: download and 5.2 GB on disk; this took others 2 minutes. With an index of CPU builds in"; \
		echo "setup: PIP_EXTRA_INDEX_URL, TORCH=cpu needs 1.1 GB on disk"; \
	fi
	@$(PIP) show hpckit 2>/dev/null | grep -q '^Summary: Preemption-tolerant' && $(PIP) uninstall --quiet --yes hpckit || true
	$(INSTALL) --editable '.[launcher]' $(if $(TORCH),torch==$(TORCH_VERSION)+$(TORCH))
	@touch $@

# The package index has uv, too. Debian 11 and Ubuntu 22.04 have no newer Python of their own.
OLD_PYTHON := hpckit needs Python 3.11 or newer: uv python install 3.12 && make PYTHON="$$(uv python find 3.12)" \
	(https://docs.astral.sh/uv; one of conda or of a module does as well)

# Debian and Ubuntu ship Python without the part that makes virtual environments; of a Python beside
# the one of the release, the package has its version in its name.
.PHONY: python-venv
python-venv: VENV_PACKAGE = $(shell $(PYTHON) -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')
python-venv:
	@[ "$$(id -u)" = 0 ] || { \
		echo "$(VENV_PACKAGE) is missing: as root, apt-get update && apt-get install -y $(VENV_PACKAGE)" >&2; exit 1; }
	apt-get update -qq
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $(VENV_PACKAGE)

demo: $(VENV)/ready-run
	$(BIN)/python launch.py experiment=demo --fresh
	@$(BIN)/hpckit report "$$(ls -td runs/demo-*/ | head -n 1)" --format html

# Many tests are of several processes themselves, and many wait for servers and Slurm: one worker has
# the tests that compute, while there are any; see tests/scheduling.py.
WORKERS := $(shell getconf _NPROCESSORS_ONLN | awk '{ print ($$1 < 2) ? 3 : 5 }')

test: setup services
	$(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadscope --no-loadscope-reorder \
		$(PYTEST_ARGS)

# The unit tests of the folders in which something differs from the last commit, or from REF.
test-quick: $(VENV)/ready
	$(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadfile $$($(BIN)/python -m tests.changed $(REF)) \
		$(PYTEST_ARGS)

# Another build of torch, such as the one for CUDA that pip takes from the public index. Its
# environment is kept for the next run, and made anew when what it is made of has changed.
TORCH_BUILD ?= 2.14.1
BUILDS := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/hpckit
BUILD = $(BUILDS)/torch-$(TORCH_BUILD)-$(shell { $(PYTHON) -V; cat pyproject.toml constraints.txt; } | sha256sum | cut -c-12)
BUILD_TESTS := tests/unit/checkpointing tests/unit/hpckit/trainer/torchrun/test_forked_workers.py \
	tests/unit/hpckit/agent/workers/test_forkserver_client.py tests/unit/hpckit/agent/workers/test_launcher_error.py \
	tests/integration/project/test_demo.py tests/integration/run/test_forked_workers.py \
	tests/cluster/test_runs.py::test_preempted_and_carried_on_by_the_successor \
	tests/cluster/test_runs.py::test_a_killed_agent_is_replaced_within_the_job_and_a_run_beside_it_feels_nothing

test-torch: services
	@[ -e $(BUILD)/ready ] || rm -rf $(BUILDS)/torch-$(TORCH_BUILD)-*
	@[ -e $(BUILD)/ready ] || { $(PYTHON) -m venv $(BUILD) && \
		grep -v '^torch==' constraints.txt > $(BUILD)/constraints.txt && \
		echo "setup: torch $(TORCH_BUILD), and what the tests need, in $(BUILD)" && \
		$(BUILD)/bin/pip --disable-pip-version-check install --quiet --constraint $(BUILD)/constraints.txt \
			torch==$(TORCH_BUILD) --editable '.[dev]'; }
	@$(BUILD)/bin/pip --disable-pip-version-check install --quiet --no-deps --editable .
	@touch $(BUILD)/ready
	$(BUILD)/bin/python -m pytest --numprocesses $(WORKERS) --dist loadscope \
		--no-loadscope-reorder $(PYTEST_ARGS) $(BUILD_TESTS)

# Another release of Slurm than this machine's, 24.11 or 26.05, unpacked from Debian's packages into
# ~/.cache/hpckit/slurm-*, which is kept for the next run; nothing is installed.
SLURM ?= 26.05
SLURM_TESTS := $(addprefix tests/cluster/,test_configuration.py test_site_kinds.py test_init.py \
	test_exclusion.py test_refused_successor.py test_expedited_requeue.py \
	test_doctor.py::test_what_will_not_work_is_exit_status_1 \
	test_devcluster.py::test_high_preempts_low_which_is_told_and_runs_again \
	test_devcluster.py::test_a_killed_node_fails_its_jobs_and_comes_back \
	test_runs.py::test_preempted_and_carried_on_by_the_successor \
	test_runs.py::test_a_cancelled_job_has_no_successor_and_can_be_resumed \
	test_runs.py::test_what_slurm_refuses_is_told \
	test_runs.py::test_the_commands_on_runs_know_slurms_jobs \
	test_elastic.py::test_the_supervisor_is_lost_with_its_node_and_the_successor_goes_on)

test-slurm: setup services
	HPCKIT_TEST_SLURM=$(SLURM) $(BIN)/python -m pytest --numprocesses 2 \
		--dist loadscope --no-loadscope-reorder $(PYTEST_ARGS) $(SLURM_TESTS)

# FRESH="--release trixie --user root" makes one machine only; python3 -m tests.fresh --help tells more.
fresh:
	$(PYTHON) -m tests.fresh $(FRESH)

# A real S3 server, a real NFS, faults of system calls and files, a Slurm, a browser. SERVICES= leaves
# them all out.
SERVICES := git radosgw ceph-mon ceph-osd ceph-common openssl user-mode-linux kmod gcc libc6-dev \
	nfs-kernel-server nfs-common rpcbind dmsetup e2fsprogs iproute2 mount strace python3-fusepy fuse3 \
	slurm-wlm munge patchelf slurmdbd mariadb-server-core mariadb-client-core util-linux nftables shellcheck \
	chromium
APT_INSTALL := DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends --no-remove

# fuse 2 does as well as fuse3, and cannot be there beside it.
services:
	@missing=; for package in $(SERVICES); do \
		[ "$$package" = fuse3 ] && command -v fusermount >/dev/null && continue; \
		dpkg-query -W -f='$${db:Status-Status}\n' $$package 2>/dev/null | grep -qx installed || \
			missing="$$missing $$package"; \
	done; \
	[ -n "$$missing" ] || exit 0; \
	if [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then \
		echo "not installed, so the tests that need them are skipped:$$missing (as root: make services)"; \
		exit 0; \
	fi; \
	apt-get update -qq; \
	known=$$(for package in $$missing; do \
		apt-cache show $$package >/dev/null 2>&1 && echo $$package; done); \
	echo "installing for the tests:" $$known; \
	$(APT_INSTALL) $$known >/dev/null || echo "not all installed: the tests that need them are skipped" >&2

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Not --quiet: warnings that are not shown are not counted by --strict.
docs: $(VENV)/ready-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

$(VENV)/ready-docs: $(VENV)/ready
	$(INSTALL) --editable '.[docs]'
	@touch $@

# Install it by its path. It is the wheel of hpckit-torch: `hpckit` is the name of another project.
wheel: $(VENV)/ready-run
	$(PIP) wheel --quiet --no-deps --wheel-dir dist .

# With each Python that hpckit is for, and beside each framework. Nothing is uploaded.
release:
	PYTHON="$(PYTHON)" tests/release.sh

clean:
	rm -rf $(VENV) dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
