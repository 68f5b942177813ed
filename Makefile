# Everything a user or a check calls. `make demo` and `make test` set everything up by themselves.

PYTHON ?= python3
VENV   ?= .venv
OUT    ?= out
DATA   ?=
# Measured kernels and collectives: DATA, or the folder beside the checkout, or the facts kept with the tests.
KERNEL_DATA := $(or $(DATA),$(wildcard ../shared/data))
PY     := $(VENV)/bin/python
STAMP  := $(VENV)/.meshwright-stamp

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

.PHONY: help setup demo test test-all test-slow lint types imports validate bench clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP)  ## create .venv with the pinned versions (once)

# Unbuilt because the build backend is pinned in the lock as well.
$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Python >= 3.11 is needed, $(PYTHON) is older. Try: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 2; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null \
	  || { echo "$(PYTHON) has no venv module. Try: install the package python3-venv" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --disable-pip-version-check --progress-bar off -r requirements.lock
	$(PY) -m pip install --disable-pip-version-check --progress-bar off --no-deps --no-build-isolation --editable .
	$(PY) -m compileall -q hwmodels planner executor reports scenarios
	@touch $@

demo: $(STAMP)  ## measure this machine, search, run three plans for real, compare, report
	$(PY) -m planner scenario tiny-llama-cpu --calibrate --out $(OUT)/demo

test: $(STAMP) lint types imports  ## lint, types, import directions and the fast tests
	$(PY) -m pytest -m "not slow" -n auto --dist loadfile $(PYTEST)

test-all: $(STAMP) lint types imports  ## all of that and the slow tests
	$(PY) -m pytest -m "not slow" -n auto --dist loadfile $(PYTEST)
	$(PY) -m pytest -m slow $(PYTEST)

test-slow: $(STAMP)
	$(PY) -m pytest -m slow $(PYTEST)

lint: $(STAMP)  ## ruff
	$(VENV)/bin/ruff check --quiet .

types: $(STAMP)  ## mypy
	$(PY) -m mypy

imports: $(STAMP)  ## import-linter: the directions between packages
	$(VENV)/bin/lint-imports --no-logo

# Where DATA is a file, it holds runs: kernels and collectives are in folders.
validate: $(STAMP)  ## score the predictions against measurements (DATA=folder for others); exits 1 on a regression
	$(PY) -m hwmodels validate
	$(if $(wildcard $(KERNEL_DATA)/*_measured.csv),$(PY) -m hwmodels validate --data $(KERNEL_DATA) --by pool)
	$(PY) -m planner validate $(DATA)

bench: $(STAMP)  ## what searches and engines must reach, plans predicted and run, kept in bench/history.jsonl
	$(PY) bench/bench.py; table=$$?; $(PY) bench/run_plans.py && exit $$table

clean:  ## remove what was made here (not .venv)
	rm -rf $(OUT) build dist .pytest_cache .hypothesis .ruff_cache .mypy_cache .import_linter_cache
