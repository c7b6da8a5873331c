# The commands of this project; `make help` lists them.
PYTHON ?= python3
CONSTRAINTS := constraints.txt
TORCH ?= $(shell grep '^torch==' $(CONSTRAINTS))
BIN := .venv/bin
DEMO := digits-demo-$(shell date +%Y%m%d-%H%M%S)
export PIP_DISABLE_PIP_VERSION_CHECK := 1

# torch comes first and alone, so that TORCH can name another build of it (one for CUDA, by its index) and nothing replaces that.
define make_venv
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	  { echo "Hookyard needs Python 3.11 or newer, and '$(PYTHON) -V' says: $$($(PYTHON) -V 2>&1). Name another: make $(MAKECMDGOALS) PYTHON=python3.12"; exit 1; }
	@echo "building $(@D) (a few minutes the first time)"
	@$(PYTHON) -m venv --clear $(@D)
	@$(@D)/bin/pip install -qq $(TORCH)
	@$(@D)/bin/pip install -qq -c $(CONSTRAINTS) $(PACKAGES)
	@touch $@
endef

# An environment of another Python than the one asked for is built anew.
VERSION := -c 'import sys; print(sys.version_info[:2])'
ifneq ($(origin PYTHON),file)
ifneq ($(wildcard $(BIN)/python),)
ifneq ($(shell $(PYTHON) $(VERSION)),$(shell $(BIN)/python $(VERSION)))
$(shell rm -f .venv/.ready)
endif
endif
endif

.PHONY: help setup demo test test-ray test-orchestrator test-rest test-cluster test-slurm test-originals test-gpu test-oldest docs lint bench clean
.DEFAULT_GOAL := help

help: ## lists these commands
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "make %-12s  %s\n", $$1, $$2}'

setup: .venv/.ready ## builds .venv with everything pinned in constraints.txt

.venv/.ready: PACKAGES = -e ".[demo,dev]"
.venv/.ready: pyproject.toml constraints.txt
	$(make_venv)

demo: setup ## trains on two workers, sweeps over eight trials, and prints the tables
	$(BIN)/hookyard run experiments/digits.yaml --name $(DEMO)
	$(BIN)/hookyard stats runs/$(DEMO) --by rank
	$(BIN)/hookyard sweep experiments/digits_ema_sweep.yaml --name $(DEMO)-sweep
	@best=$$($(BIN)/hookyard show runs/$(DEMO)-sweep --json | $(BIN)/python -c 'import json, sys; print(json.load(sys.stdin)["best"])') && \
	  echo "$(BIN)/hookyard stats $$best --by rank" && $(BIN)/hookyard stats $$best --by rank
	@echo
	@echo "All of it is in runs/$(DEMO) and runs/$(DEMO)-sweep. Next:"
	@echo "  $(BIN)/hookyard stats runs/$(DEMO) --by hook"
	@echo "  $(BIN)/hookyard report runs/$(DEMO)-sweep"
	@echo "  $(BIN)/hookyard run experiments/digits.yaml hooks.ema.decay=0.5 --name mine"
	@echo "  $(BIN)/tensorboard --logdir runs"

test: setup ## lint, types and tests: what must pass
	@$(MAKE) --no-print-directory --jobs=3 --output-sync=target test-ray test-orchestrator lint test-rest

test-ray: setup ## the tests that start Ray, which share one cluster and wait for it most of the time
	$(BIN)/pytest -m ray tests/ray

test-orchestrator: setup ## the tests of orchestrator/ that start no Ray, but for the folders with c and d
	$(BIN)/pytest -m 'not ray and not cluster and not slurm and not gpu' tests/orchestrator --ignore-glob='tests/orchestrator/[cd]*'

test-rest: setup ## all others that start no Ray: about as long as the former
	$(BIN)/pytest -m 'not ray and not cluster and not slurm and not gpu and not originals' --ignore-glob='tests/orchestrator/[!cd]*'

test-cluster: setup ## a Ray cluster of three hosts made of namespaces, reached over ssh; needs root, and skips without
	$(BIN)/pytest -rs -m cluster tests/cluster

test-slurm: setup ## jobs on a real Slurm of two nodes, which the tests start; needs root and Debian's slurm-wlm and munge, and skips without
	$(BIN)/pytest -rs -m slurm tests/slurm

ORIGINALS := build/originals
test-originals: setup ## the rules of MMEngine that the tests have by hand, against MMEngine itself, which goes to a folder of its own
	$(BIN)/pip install -qq --no-deps --upgrade --target $(ORIGINALS) mmengine==0.10.7 addict termcolor yapf platformdirs \
	  opencv-python-headless
	PYTHONPATH=$(ORIGINALS) $(BIN)/pytest -rs -m originals tests/test_numbers_of_other_systems.py

DEVICE ?= cuda
GPU_PYTHON := $(if $(filter file,$(origin PYTHON)),$(firstword $(wildcard $(BIN)/python) $(PYTHON)),$(PYTHON))
test-gpu: ## tests for a GPU, by PYTHON, or .venv where there is one (benchmarks/gpu/wheels.txt says what it needs); DEVICE=cpu runs what of them a CPU can
	$(GPU_PYTHON) -m pytest tests/gpu -m gpu -rs --device $(DEVICE)

.venv-oldest/.ready: CONSTRAINTS := constraints-oldest.txt
.venv-oldest/.ready: PACKAGES = -e ".[demo,dev]"
.venv-oldest/.ready: pyproject.toml constraints-oldest.txt
	$(make_venv)

test-oldest: .venv-oldest/.ready ## the tests with the oldest versions that pyproject.toml allows
	.venv-oldest/bin/pytest -m 'not cluster and not slurm and not gpu and not originals'

docs: setup ## builds the site of the docs into build/site; a link or reference that leads nowhere fails
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet
	@echo "Open build/site/index.html, or see changes as you save them: $(BIN)/python -m mkdocs serve"

lint: setup ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check --quiet .
	$(BIN)/mypy

.venv-bench/.ready: PACKAGES = -e ".[demo]" -r benchmarks/peers.txt
.venv-bench/.ready: pyproject.toml constraints.txt benchmarks/peers.txt
	$(make_venv)

bench: .venv-bench/.ready ## most benchmarks of speed, their peers beside them; prints Markdown
	@for script in loop_overhead stream_overhead turns_overhead idle_hooks default_hooks ema_update recorder wait_cost tables watch cli_start run_overhead report sweep_cost open_sweep; do \
	  .venv-bench/bin/python -m benchmarks.$$script || exit 1; done

clean: ## removes the environments and caches; keeps runs/
	rm -rf .venv .venv-oldest .venv-bench build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
