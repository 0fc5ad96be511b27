# Everything sets itself up in .venv, from nothing but Python 3.10 or newer.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help run test test-host lint bench schemas clean

# python3.11 where it is there and starts (a version manager's stand-in may do neither), else python3
PYTHON ?= $(shell python3.11 -c '' 2>/dev/null && echo python3.11 || echo python3)
VENV ?= .venv
BIN := $(VENV)/bin
SCRIPTS := $(shell grep -lsE '^\#!.*bash' .ci/* bin/* docker/*)
WORKFLOWS := $(wildcard .github/workflows/*.yml)
SETTINGS := pyproject.toml constraints.txt bin/setup-venv

help:
	@echo 'reprokit: a determinism gate for machine-learning repositories'
	@echo
	@echo '  make run        measure this machine, approve it, compare: three summaries in build/demo'
	@echo '  make test       the tests'
	@echo '  make lint       style, types, schemas, shell scripts, Dockerfile, workflows (needs Python 3.11)'
	@echo '  make bench      how fast it is, side by side with its peers (up to 20 minutes)'
	@echo '  make schemas    rewrite schemas/ from the models'
	@echo '  make clean      remove build/, caches and $(VENV)'
	@echo
	@echo 'The first run installs what it needs into $(VENV); torch is most of it.'
	@echo 'Another interpreter: make clean, then make run PYTHON=python3.12   (now: $(PYTHON))'

run: $(VENV)/.ready-probe
	@$(BIN)/python bin/demo

test: $(VENV)/.ready-probe,test
	@$(BIN)/python -m pytest $(ARGS)

# what CI runs on other Pythons, without torch and engine: make test-host VENV=.venv-3.13 PYTHON=python3.13
test-host: $(VENV)/.ready-test
	@$(BIN)/python -m pytest -m 'not torch' --ignore tests/e2e $(ARGS)

lint: export PATH := $(abspath $(BIN)):$(PATH)
lint: $(VENV)/.ready-lint
	ruff check .
	ruff format --check .
	mypy
	bin/generate-schemas --check
	check-jsonschema --check-metaschema schemas/*.json
	shellcheck $(SCRIPTS)
	hadolint docker/Dockerfile
	check-jsonschema --builtin-schema vendor.github-workflows $(WORKFLOWS)
	check-jsonschema --builtin-schema vendor.dependabot .github/dependabot.yml
	check-jsonschema --builtin-schema vendor.github-actions action.yml
	actionlint $(WORKFLOWS)
	zizmor --offline --quiet --persona auditor .

bench: $(VENV)/.ready-probe
	@$(BIN)/python benchmarks/bench.py $(ARGS)

schemas: $(VENV)/.ready-probe
	@$(BIN)/python bin/generate-schemas

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis benchmarks/results.json
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.ready-%: $(SETTINGS)
	@$(PYTHON) bin/setup-venv $(VENV) $*
	@touch '$@'
