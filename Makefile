# `make quickstart` and `make test` do all the set-up a fresh machine needs.
VENV ?= .venv
PYTHON := $(VENV)/bin/python
READY := $(VENV)/.ready
# One exact torch build, CPU by default; a cluster sets TORCH to its own (README: which builds run on V100).
TORCH ?= torch==2.13.0

.PHONY: quickstart test checks format slurm clean

quickstart: $(READY)
	$(VENV)/bin/reread run quickstart

test: $(READY)
	$(PYTHON) -m pytest -n logical --maxprocesses 4 --dist loadfile

checks: $(READY)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

format: $(READY)
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

# A Slurm for tests/slurm, which start it themselves (Debian's packages)
slurm:
	{ command -v slurmctld && command -v slurmd && command -v srun; } || \
		{ apt-get update && apt-get install -y --no-install-recommends slurm-wlm; }

$(READY): setup.py
	python3 -m venv $(VENV) || { apt-get update && apt-get install -y python3-venv && python3 -m venv $(VENV); }
	$(PYTHON) -m pip install --quiet --upgrade pip setuptools wheel
	$(PYTHON) -m pip install --quiet "$(TORCH)"
	$(PYTHON) -m pip install --quiet -e ".[train,dev]"
	touch $@

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache
