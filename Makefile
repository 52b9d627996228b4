# `make test` and `make demo` do their own set-up (recipes/scripts/setup.sh) on a fresh machine.
#   PYTHON=python3.12 make test      choose the interpreter (3.10 to 3.13) of a new environment
#   VENV=.venv-3.12 make test        another place for the environment
#   TORCH_SPEC='torch==2.5.1' make test   another torch
#   make test ARGS='-k gates -x'     arguments for pytest (and, with `make demo`, for the demo)
SHELL := bash
.DEFAULT_GOAL := help
VENV ?= .venv
ARGS ?=
# Processes that the tests are shared among.
WORKERS ?= 2
export VENV
# The environment is self-contained: a PYTHONPATH of other work could bring another fairseq in.
unexport PYTHONPATH PYTHONHOME
# With it `cd` prints the folder, or goes to another one.
unexport CDPATH
# The tests start hundreds of processes, which would compile the package again and again.
unexport PYTHONDONTWRITEBYTECODE

IN_VENV = PATH="$$(cd "$(VENV)/bin" && pwd):$$PATH"
PYTEST = $(IN_VENV) python -m pytest -n $(WORKERS) --dist loadfile
EVERY_CHANGE = -m "not rehearsal and not release"
.PHONY: help setup test rehearse releasetests matrix coverage demo docs check format wheel clean distclean

help: ## show this list
	@sed -n 's/^\([a-z]*\):.*## /  make \1|/p' Makefile | column -t -s '|' 2>/dev/null || grep '##' Makefile

setup: ## make the environment (test, demo, check ... do this themselves)
	@recipes/scripts/setup.sh

test: setup ## run the tests of every change
	@$(PYTEST) $(EVERY_CHANGE) $(ARGS)

rehearse: setup ## run what a reader of the documentation does: its commands, a short demo, the package
	@$(PYTEST) -m "rehearsal and not release" --durations 12 $(ARGS)

releasetests: setup ## run the tests that a change need not wait for, before a release (half an hour)
	@$(PYTEST) -m release --durations 12 $(ARGS)

matrix: ## run the tests with several versions of Python, fairseq and torch (hours, and gigabytes of downloads)
	@tests/matrix.sh $(CELLS)

coverage: setup ## run the tests of every change and print the lines that they do not reach
	@$(PYTEST) $(EVERY_CHANGE) --cov --cov-report=term-missing:skip-covered $(ARGS); status=$$?; rm -f .coverage.*; exit $$status

# The demo needs no tools for tests and documentation.
DEMO_EXTRAS = fairseq,text,plots,ctranslate2
demo: export EXTRAS := $(or $(EXTRAS),$(DEMO_EXTRAS))
demo: setup ## train, gate, prune and report on a small model; writes demo-out/
	@$(IN_VENV) recipes/demo.sh $(ARGS)

docs: setup ## build the documentation in docs/_build/html; a dead link or an unknown reference fails
	@$(IN_VENV) python -m sphinx -q -E -W --keep-going -n -b html docs docs/_build/html

check: setup ## lint, formatting, types, shell scripts
	@$(IN_VENV) ruff check .
	@$(IN_VENV) ruff format --check .
	@$(IN_VENV) MYPYPATH=recipes/scripts mypy fairseq_headgates headgates_start.py recipes
	@$(IN_VENV) shellcheck -S warning -s bash recipes/*.sh recipes/scripts/*.sh benchmarks/*.sh tests/*.sh .ci/run

format: setup ## rewrite the code in the project's format
	@$(IN_VENV) ruff check --fix-only .
	@$(IN_VENV) ruff format .

wheel: setup ## build dist/*.whl and *.tar.gz
	@$(IN_VENV) python -m build --no-isolation

clean: ## remove caches and built packages (keeps the environment and the recipes' results)
	@rm -rf build dist docs/_build ./*.egg-info .coverage .coverage.* .pytest_cache .ruff_cache .mypy_cache .hypothesis
	@find . -path './.venv*' -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean ## remove the environment too
	@if [[ -f "$(VENV)/pyvenv.cfg" ]]; then rm -rf "$(VENV)"; fi
