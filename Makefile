# `make help` lists the targets. Everything lives in .venv; data in var/.
.DEFAULT_GOAL := help
.PHONY: help install install-dev demo run test test-all lint format types lock clean migrations-check bench

VENV := .venv
PY := $(VENV)/bin/python
# The first Python >= 3.11 on the path, or what the caller names: make PYTHON=python3.12 demo
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11 python; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo $$p && break; done)
PIP := $(PY) -m pip install --quiet --disable-pip-version-check
# Extra words for the installation of torch, e.g. an index with CPU-only builds (see README.md).
TORCH_PIP_ARGS ?=
ARGS ?=
# Processes that tests are dealt to: a number, or auto for one per core. By tests/dealing.py: file by file in its order,
# those together that share an installation. On Postgres each process has a database of its own.
WORKERS ?= auto
DEAL := --dist loadfile --no-loadscope-reorder
# The maths libraries of a planner process run one thread: Celery and the kernel's own threads share the cores.
export OMP_NUM_THREADS ?= 1
export OPENBLAS_NUM_THREADS ?= 1

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-18s %s\n", $$1, $$2}'

$(PY):
	@test -n "$(PYTHON)" || { echo "Ridgeline needs Python 3.11 or newer on the path (or make PYTHON=...)"; exit 2; }
	@echo "Creating $(VENV) with $(PYTHON)"
	@$(PYTHON) -m venv $(VENV) || { echo "python's venv module is missing (Debian: apt install python3-venv)"; exit 2; }

$(VENV)/.runtime: requirements.lock requirements-engine.lock | $(PY)
	@echo "Installing the planner (about 150 MB of downloads) ..."
	@$(PIP) --require-hashes -r requirements.lock
	@echo "Installing the torch engine (200 MB as a CPU build, 2.7 GB with CUDA; README.md: TORCH_PIP_ARGS) ..."
	@$(PIP) $(TORCH_PIP_ARGS) -r requirements-engine.lock
	@touch $@

$(VENV)/.dev: requirements-dev.lock $(VENV)/.runtime
	@$(PIP) --require-hashes -r requirements-dev.lock
	@touch $@

install: $(VENV)/.runtime ## create .venv and install what running needs
install-dev: $(VENV)/.dev ## the same with what testing needs

demo: install ## measure a small model here, plan for a built-in traffic, serve (ARGS=--exit: stop after the verdict)
	@$(PY) manage.py demo $(ARGS)

run: install ## web server, workers and beat in one process tree
	@$(PY) manage.py serve $(ARGS)

# Tests start some 150 processes: each compiles Ridgeline's sources anew where none may be kept.
test test-all: export PYTHONDONTWRITEBYTECODE :=

test: install-dev ## the whole suite (DATABASE_URL and REDIS_URL, when set, are used)
	@$(PY) -m planner.simulation.ready & # compiles the simulator once, beside the tests that need no simulator
	$(PY) -m pytest -n $(WORKERS) $(DEAL) $(ARGS)

test-all: install-dev ## with the slow tests
	$(PY) -m pytest -n $(WORKERS) $(DEAL) --run-slow $(ARGS)

lint: install-dev ## ruff and the import contract
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/lint-imports

format: install-dev ## ruff, mending what it can
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

types: install-dev ## mypy
	$(VENV)/bin/mypy .

migrations-check: install-dev ## models and migrations agree
	$(PY) manage.py makemigrations --check --dry-run

bench: install-dev ## the benchmarks, as CPU time
	@for file in benchmarks/*.py; do echo "== $$file"; $(PY) $$file || exit 1; done

lock: install-dev ## resolve requirements*.in again
	$(VENV)/bin/pip-compile --quiet --upgrade --generate-hashes --allow-unsafe --strip-extras --no-emit-index-url \
		--no-emit-find-links --no-emit-trusted-host -o requirements.lock requirements.in
	$(VENV)/bin/pip-compile --quiet --upgrade --generate-hashes --allow-unsafe --strip-extras --no-emit-index-url \
		--no-emit-find-links --no-emit-trusted-host -o requirements-dev.lock requirements-dev.in
	$(VENV)/bin/pip-compile --quiet --upgrade --generate-hashes --allow-unsafe --strip-extras --no-emit-index-url \
		--no-emit-find-links --no-emit-trusted-host -o requirements-parquet.lock requirements-parquet.in

clean: ## remove .venv and caches; what you measured, in var/, stays
	rm -rf $(VENV) staticfiles .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
