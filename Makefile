# `make quickstart` and `make test` do all the set-up a fresh machine needs.
VENV ?= .venv
PYTHON := $(VENV)/bin/python
READY := $(VENV)/.ready
# One exact torch build, CPU by default; a cluster sets TORCH to its own (README: which builds run on V100).
TORCH ?= torch==2.13.0

.PHONY: quickstart test test-fast checks format constraints gpu peers slurm horovod horovod-wheel build-horovod apex clean

# OVERRIDES="train.steps=200" changes settings of the recipe.
quickstart: $(READY)
	$(VENV)/bin/reread run quickstart $(OVERRIDES)

# One worker more than cores, since Slurm's tests mostly wait.
test: $(READY)
	$(PYTHON) -m pytest -n $$(($$(nproc) < 8 ? $$(nproc) + 1 : 8)) --dist loadfile --no-loadscope-reorder

# While changing something: no processes are started, and hypothesis tries few examples.
test-fast: $(READY)
	REREAD_EXAMPLES=10 $(PYTHON) -m pytest -n logical --maxprocesses 8 --dist loadfile -m "not slow" tests/preprocessing tests/pipeline tests/training

checks: $(READY)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports --no-cache

format: $(READY)
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

# constraints.txt: the newest versions that go together on Python 3.10 and later, beside TORCH; `.ci/run` tests them.
# torch, its sympy and CUDA's packages are left out: TORCH may be another. torch 2.11 and 2.12 refuse setuptools 82.
constraints: $(READY)
	$(PYTHON) -m pip install --quiet uv
	printf '%s\n' "$(TORCH)" pip "setuptools<82" wheel | $(VENV)/bin/uv pip compile --quiet --upgrade --universal \
		--python-version 3.10 --no-python-downloads --extra train --extra dev --extra horovod --no-header --no-annotate \
		--output-file $(VENV)/constraints.txt setup.py - > /dev/null
	{ echo "# made by \`make constraints\`"; \
		grep -vE '^(torch|sympy|triton|cuda-[a-z]+|nvidia-[a-z0-9-]+)==' $(VENV)/constraints.txt; } > constraints.txt

# What a GPU can show, in under nine minutes: tests/gpu, then speed, memory and kernels of each model beside
# transformers' (benchmarks/gpu). PYTHON=python3 takes an interpreter that has a CUDA torch and what the package
# imports, and installs nothing; OUT is the folder of the results. Without a GPU it prints what it would run.
OUT ?= runs/gpu
gpu: $(if $(filter $(VENV)/bin/python,$(PYTHON)),$(READY))
	PYTHONPATH="$(CURDIR):$$PYTHONPATH" $(PYTHON) benchmarks/gpu/run.py --out "$(OUT)"

# The README's table of peers, in 15 to 25 minutes: each is installed in an environment of its own under
# runs/peers. PEERS="--text novels/ --vocabulary vocab.txt --train train.tsv --dev dev.tsv" takes other text.
peers: $(READY)
	$(PYTHON) benchmarks/peers/run.py --publish $(PEERS)

# A Slurm for tests/slurm, which start it themselves (Debian's packages)
slurm:
	{ command -v slurmctld && command -v slurmd && command -v srun; } || \
		{ apt-get update && apt-get install -y --no-install-recommends slurm-wlm; }

# Horovod, built against the torch that is installed; nothing to do where that is done. With a CUDA torch it reduces by
# NCCL and needs nvcc and NCCL's headers and library (HOROVOD_NCCL_HOME says where; HOROVOD_CUDA_HOME, where not on PATH).
# With -j2 it compiles while the packages that it does not read are installed.
HOROVOD_IS_BUILT = $(PYTHON) -W "error:Framework pytorch" -c "import horovod.torch" 2>/dev/null
horovod: horovod-wheel $(READY)
	$(HOROVOD_IS_BUILT) || { $(PYTHON) -m pip uninstall --quiet --yes horovod && \
		$(PYTHON) -m pip install --quiet --find-links $(VENV)/wheels --constraint constraints.txt -e ".[horovod]"; }

horovod-wheel: $(VENV)/.torch
	$(HOROVOD_IS_BUILT) || $(MAKE) build-horovod

build-horovod:
	{ command -v g++ && command -v cmake; } || \
		{ apt-get update && apt-get install -y --no-install-recommends g++ cmake; }
	CMAKE_TOOLCHAIN_FILE=$(CURDIR)/training/parallel/horovod.cmake MAKEFLAGS=-j$$(nproc) \
		HOROVOD_WITH_PYTORCH=1 HOROVOD_WITHOUT_TENSORFLOW=1 HOROVOD_WITHOUT_MXNET=1 \
		HOROVOD_WITH_GLOO=1 HOROVOD_WITHOUT_MPI=1 \
		HOROVOD_GPU_OPERATIONS=$$($(PYTHON) -c "import torch; print('NCCL' if torch.version.cuda else '')") \
		$(PYTHON) -m pip wheel --quiet --no-deps --no-build-isolation --no-cache-dir --no-binary horovod \
		--constraint constraints.txt --wheel-dir $(VENV)/wheels horovod

# NVIDIA's apex, built with its CUDA kernels from a folder of its source against the torch that is installed: needs a
# torch with CUDA and the nvcc of the same CUDA. (The package of that name on PyPI is something else.)
apex: $(READY)
	@test -f "$(APEX)/apex/optimizers/fused_lamb.py" || \
		{ echo "make apex APEX=FOLDER: FOLDER holds the source of NVIDIA/apex on GitHub"; exit 2; }
	@$(PYTHON) -c "import sys, torch; sys.exit(torch.version.cuda is None and 'apex needs a torch with CUDA')"
	$(PYTHON) -m pip uninstall --quiet --yes apex
	APEX_CPP_EXT=1 APEX_CUDA_EXT=1 $(PYTHON) -m pip install --no-build-isolation --no-deps --no-cache-dir "$(abspath $(APEX))"
	$(PYTHON) -c "import torch, amp_C; from apex.optimizers import FusedLAMB"

$(VENV)/.torch: constraints.txt
	python3 -m venv $(VENV) || { apt-get update && apt-get install -y python3-venv && python3 -m venv $(VENV); }
	$(PYTHON) -m pip install --quiet --upgrade --constraint constraints.txt pip setuptools wheel
	$(PYTHON) -m pip install --quiet --constraint constraints.txt "$(TORCH)" numpy
	touch $@

$(READY): $(VENV)/.torch setup.py constraints.txt
	$(PYTHON) -m pip install --quiet --constraint constraints.txt --build-constraint constraints.txt -e ".[train,dev]"
	touch $@

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache
