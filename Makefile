# `make quickstart` and `make test` do all the set-up a fresh machine needs.
VENV ?= .venv
INTERPRETER ?= python3
EXTRAS ?= train,dev
PYTHON := $(VENV)/bin/python
READY := $(VENV)/.ready
# One exact torch build, CPU by default; a cluster sets TORCH to its own (docs/install.md: which builds run on V100).
TORCH ?= torch==2.13.0

.PHONY: quickstart test test-long test-fast test-versions test-extras transformers-suite fuzz checks named docs format constraints \
	notebooks dist gpu gpus peers slurm horovod horovod-wheel build-horovod apex clean

# OVERRIDES="train.steps=200" changes settings of the recipe.
quickstart: $(READY)
	$(VENV)/bin/reread run quickstart $(OVERRIDES)

# Two workers more than cores, since many tests wait, Slurm's most. TESTS=tests/pipeline runs some of them.
test: $(READY)
	$(PYTHON) -m pytest -n $$(($$(nproc) < 6 ? $$(nproc) + 2 : 8)) --dist loadfile --no-loadscope-reorder -m "not long" $(TESTS)

# What a model learns, what the claims' scripts compute, GPU scripts at toy sizes, Ray's rarer faults: ten minutes on two cores.
test-long: $(READY)
	$(PYTHON) -m pytest -n logical --maxprocesses 8 --dist load -m long tests

# While changing something: no processes are started, and hypothesis tries few examples.
test-fast: $(READY)
	REREAD_EXAMPLES=10 $(PYTHON) -m pytest -n logical --maxprocesses 8 --dist loadfile -m "not slow and not long" tests/preprocessing tests/pipeline tests/training

# The fast tests on the oldest and the newest of these versions that runs here, each in an environment of its own. A
# pythonX.Y that only prints an error, as pyenv's does for a version that is not chosen, is not here: with pyenv
# `PYENV_VERSION=3.10.13:3.13.0 make test-versions`.
VERSIONS = 3.10 3.11 3.12 3.13
test-versions:
	@here=$$(for version in $(VERSIONS); do python$$version -c "" 2>/dev/null && echo $$version; done | sed -n '1p;$$p' | uniq); \
		test -n "$$here" || { echo "test-versions: no Python of $(VERSIONS) runs here, so nothing was tested"; exit 1; }; \
		echo "test-versions: of Python $(VERSIONS) the oldest and the newest that run here:" $$here; \
		for version in $$here; do \
			$(MAKE) test-fast VENV=$(VENV)-$$version INTERPRETER=python$$version || exit 1; \
		done

# What the extras of setup.py bring, TensorFlow too, which `.ci/run` leaves out for its size; none of it is skipped.
test-extras:
	REREAD_REQUIRED="baselines html minilm mlflow onnx tensorflow wandb" $(MAKE) test VENV=$(VENV)-extras \
		EXTRAS=train,dev,baselines,html,minilm,mlflow,onnx,tensorflow,wandb TESTS="tests/training/exchange tests/training/scoring \
		tests/training/run/test_writers.py tests/preprocessing/input tests/docs tests/pipeline/commands/test_finetuning.py tests/end_to_end/test_finetune.py"

# The tests that transformers runs on its own models, on those whose code is exported, in three minutes. pip downloads
# them into $(VENV) with transformers' source distribution. MODELS="nezha ran" tries some.
transformers-suite: $(READY)
	OMP_NUM_THREADS=1 $(PYTHON) -m tests.transformers_suite $(MODELS)

# All fuzzers in turn, for hours: FUZZ_CASES cases from number FUZZ_FIRST on. `python -m tests.fuzz TARGET NUMBER` shows one.
FUZZ_CASES ?= 500000
FUZZ_FIRST ?= 0
fuzz: $(READY)
	FUZZ_CASES=$(FUZZ_CASES) FUZZ_FIRST=$(FUZZ_FIRST) nice $(PYTHON) -m tests.fuzz

checks: $(READY) named
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	MYPYPATH=$(NAMED) $(VENV)/bin/mypy
	cd $(NAMED) && $(abspath $(VENV))/bin/lint-imports --no-cache --config $(CURDIR)/pyproject.toml

# mypy, import-linter and the site find the package's folders by links below one name, as an installation has them.
NAMED = $(abspath $(VENV))/named
named: $(READY)
	mkdir -p $(NAMED)/reread
	ln -sfn $(addprefix $(CURDIR)/,$(wildcard reread/*.py) pipeline preprocessing training) $(NAMED)/reread/

# The site of docs/; a warning, such as of a link that leads nowhere, is an error (with --quiet it would be none). `mkdocs
# serve` shows the site while you write.
docs: $(READY) named
	$(PYTHON) -c "import mkdocs, mkdocstrings" 2>/dev/null || \
		$(PYTHON) -m pip install --quiet --constraint constraints.txt -e ".[docs]"
	NAMED=$(NAMED) NO_MKDOCS_2_WARNING=1 PATH="$(abspath $(VENV))/bin:$$PATH" $(PYTHON) -m mkdocs build --strict
	@echo "docs: open build/site/index.html; for its search, $(PYTHON) -m http.server --directory build/site"

format: $(READY)
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

# constraints.txt: the newest versions that go together on Python 3.10 and later, beside TORCH; `.ci/run` tests them.
# torch, its sympy and CUDA's packages are left out: TORCH may be another. torch 2.11 and 2.12 refuse setuptools 82.
constraints: $(READY)
	$(PYTHON) -m pip install --quiet uv
	printf '%s\n' "$(TORCH)" pip "setuptools<82" wheel | $(VENV)/bin/uv pip compile --quiet --upgrade --universal \
		--python-version 3.10 --no-python-downloads --extra train --extra dev --extra horovod --extra baselines \
		--extra html --extra minilm --extra onnx --extra mlflow --extra wandb --extra notebooks --extra docs \
		--no-header --no-annotate \
		--output-file $(VENV)/constraints.txt setup.py - > /dev/null
	{ echo "# made by \`make constraints\`"; \
		grep -vE '^(torch|sympy|triton|cuda-[a-z]+|nvidia-[a-z0-9-]+)==' $(VENV)/constraints.txt; } > constraints.txt

# The notebooks from their first cell to their last, in runs/notebooks, with few STEPS of pretraining.
# NOTEBOOKS=notebooks/zh.ipynb runs that one.
STEPS ?= 30
NOTEBOOKS ?= notebooks/*.ipynb
notebooks: $(READY)
	$(PYTHON) -c "import ipykernel, nbmake" 2>/dev/null || \
		$(PYTHON) -m pip install --quiet --constraint constraints.txt -e ".[notebooks]"
	rm -rf runs/notebooks && mkdir -p runs/notebooks && cp $(NOTEBOOKS) runs/notebooks
	PATH="$(abspath $(VENV))/bin:$$PATH" STEPS=$(STEPS) $(PYTHON) -m pytest --nbmake --nbmake-timeout 300 runs/notebooks

# The source distribution and the wheel made from it, in dist/. The wheel is tried in an environment that has nothing else.
TRIED := $(VENV)-dist
dist:
	rm -rf dist build
	$(INTERPRETER) -m venv --clear $(TRIED)
	$(TRIED)/bin/python -m pip install --quiet --constraint constraints.txt --upgrade pip setuptools wheel build
	$(TRIED)/bin/python -m build --no-isolation
	$(INTERPRETER) -m venv --clear $(TRIED)
	$(TRIED)/bin/python -m pip install --quiet --constraint constraints.txt dist/*.whl
	cd / && $(abspath $(TRIED))/bin/python -m reread --version && $(abspath $(TRIED))/bin/reread recipes > /dev/null
	$(TRIED)/bin/python -c "import sys, zipfile; \
		tops = {name.split('/')[0] for name in zipfile.ZipFile(sys.argv[1]).namelist()}; \
		print('the wheel holds', *sorted(tops)); \
		sys.exit({top for top in tops if not top.endswith('.dist-info')} != {'reread'})" dist/*.whl

# What a GPU can show, in under nine minutes, what decides most first (benchmarks/gpu): whole steps beside transformers'
# BERT, then attention, products, the update, our kernels; tests/gpu last. ONLY="'steps*' ran" runs some cases,
# WITHOUT="gelu" trains each model of ours also without that kernel, in turns. PYTHON=python3 takes an interpreter that
# has a CUDA torch and what the package imports, and installs nothing; OUT is the folder of the results. Without a GPU
# it prints what it would run.
gpu: OUT ?= runs/gpu
gpu: $(if $(filter $(VENV)/bin/python,$(PYTHON)),$(READY))
	PYTHONPATH="$(CURDIR):$$PYTHONPATH" $(PYTHON) benchmarks/gpu/run.py --out "$(OUT)" $(if $(ONLY),--only $(ONLY)) \
		$(if $(WITHOUT),--without $(WITHOUT))

# Whether several GPUs compute what one does, and how fast, as a table for an issue. PYTHON and OUT are as for `make gpu`;
# TOY=1 runs it at small sizes, on CPU without two GPUs.
gpus: OUT ?= runs/gpus
gpus: $(if $(filter $(VENV)/bin/python,$(PYTHON)),$(READY))
	PYTHONPATH="$(CURDIR):$$PYTHONPATH" $(PYTHON) benchmarks/gpu/several.py --out "$(OUT)" $(if $(TOY),--toy)

# The page benchmarks/peers/README.md, in 15 to 25 minutes: each is installed in an environment of its own under
# runs/peers. PEERS="--text novels/ --vocabulary vocab.txt --train train.tsv --dev dev.tsv" takes other text.
peers: $(READY)
	$(PYTHON) benchmarks/peers/run.py --publish $(PEERS)

# A Slurm for tests/slurm, which start it themselves (Debian's packages)
slurm:
	{ command -v slurmctld && command -v slurmd && command -v srun; } || \
		{ apt-get update && apt-get install -y --no-install-recommends slurm-wlm; }

# Horovod, built against the torch that is installed; nothing to do where that is done. With a CUDA torch it reduces by
# NCCL and needs nvcc and NCCL's headers and library (HOROVOD_NCCL_HOME says where; HOROVOD_CUDA_HOME, where not on PATH).
# With a torch for ROCm it stops with a line.
# With -j2 it compiles while the packages that it does not read are installed.
HOROVOD_IS_BUILT = $(PYTHON) -W "error:Framework pytorch" -c "import horovod.torch" 2>/dev/null
horovod: horovod-wheel $(READY)
	$(HOROVOD_IS_BUILT) || { $(PYTHON) -m pip uninstall --quiet --yes horovod && \
		$(PYTHON) -m pip install --quiet --find-links $(VENV)/wheels --constraint constraints.txt -e ".[horovod]"; }

horovod-wheel: $(VENV)/.torch
	$(HOROVOD_IS_BUILT) || $(MAKE) build-horovod

build-horovod:
	@$(PYTHON) -c "import sys, torch; sys.exit(torch.version.hip and 'make horovod: not for ROCm, where Horovod was never \
	built; parallel.gradients: nccl-ring reduces by the ring of RCCL')"
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
	@$(PYTHON) -c "import sys, torch; sys.exit(torch.version.cuda is None and 'make apex: needs a torch with CUDA, ' \
	'since apex is NVIDIA\'s; on other GPUs LAMB runs on our own kernels')"
	$(PYTHON) -m pip uninstall --quiet --yes apex
	APEX_CPP_EXT=1 APEX_CUDA_EXT=1 $(PYTHON) -m pip install --no-build-isolation --no-deps --no-cache-dir "$(abspath $(APEX))"
	$(PYTHON) -c "import torch, amp_C; from apex.optimizers import FusedLAMB"

$(VENV)/.torch: constraints.txt
	$(INTERPRETER) -m venv $(VENV) || { apt-get update && apt-get install -y python3-venv && $(INTERPRETER) -m venv $(VENV); }
	$(PYTHON) -m pip install --quiet --upgrade --constraint constraints.txt pip setuptools wheel
	$(PYTHON) -m pip install --quiet --constraint constraints.txt "$(TORCH)" numpy
	touch $@

$(READY): $(VENV)/.torch setup.py constraints.txt
	$(PYTHON) -m pip install --quiet --constraint constraints.txt --build-constraint constraints.txt -e ".[$(EXTRAS)]"
	touch $@

clean:
	rm -rf $(VENV) $(VENV)-* build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
