# `make` prints what there is to do. Every target prepares the machine by itself; after the first time it works offline.

SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help demo test lint bench latency nexmark nexmark-kills protection scale crash chaos java archive

PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

# Tests start Python by the hundred: what one process has compiled, none compiles again.
unexport PYTHONDONTWRITEBYTECODE

# In this order: what fails fastest and explains most comes first.
TEST_GROUPS := $(wildcard tests/unit tests/contract tests/property tests/sim) tests/test_*.py \
               $(wildcard tests/services tests/spark tests/chaos)

title = printf '\n\033[1m== %s\033[0m\n' "$(1)"

help: ## this list
	@printf 'Holdfast: fault-tolerant stateful stream processing for PySpark\n\n'
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(INSTALLED) java ## a job is killed and goes on exactly where it was (about two minutes)
	@$(BIN)/holdfast demo

test: $(INSTALLED) archive ## everything but the crash matrix: style, types, layers, then the tests, fastest first
	@set -e; started=$$SECONDS; \
	$(MAKE) --no-print-directory lint; \
	for group in $(TEST_GROUPS); do \
		$(call title,pytest $$group); \
		$(BIN)/python -m pytest -q -m "not heavy" $$group; \
	done; \
	$(call title,all passed in $$((SECONDS - started)) s)

lint: $(INSTALLED) ## style, types and layers alone
	@$(call title,ruff: style)
	@$(BIN)/ruff check .
	@$(call title,mypy: types)
	@$(BIN)/mypy
	@$(call title,import-linter: imports point down only)
	@$(BIN)/lint-imports --no-logo

bench: $(INSTALLED) java ## speed beside Spark's own stateful operators, PyFlink and bytewax, on a quiet machine (about an hour)
	@$(BIN)/python -m bench

latency: $(INSTALLED) java ## how long rows take beside Structured Streaming, on a quiet machine (about 25 minutes; ARGS="--rates 100")
	@$(BIN)/python -m bench.latency $(ARGS)

nexmark: $(INSTALLED) java ## the Nexmark queries beside Spark's own streaming, on a quiet machine (about 7 minutes; ARGS="--queries 0,4")
	@$(BIN)/python -m bench.nexmark $(ARGS)

nexmark-kills: $(INSTALLED) java ## each Nexmark query in a job of its own, killed three times and compared (about 20 minutes)
	@$(call title,pytest tests/chaos/test_nexmark_killed.py)
	@HOLDFAST_NEXMARK_ALONE=1 $(BIN)/python -m pytest -q tests/chaos/test_nexmark_killed.py

protection: $(INSTALLED) java ## what each protection of a part costs and gives, nodes killed, on a quiet machine (about an hour; ARGS=--quick)
	@$(BIN)/python -m bench.protection $(ARGS)

scale: $(INSTALLED) java ## what epochs cost as a job grows, and what gives way first, on a quiet machine (about two hours; ARGS=--quick)
	@$(BIN)/python -m bench.scale $(ARGS)

crash: $(INSTALLED) archive ## the crash matrix: a real process killed at every step of the protocol (long)
	@$(call title,pytest tests/chaos)
	@$(BIN)/python -m pytest tests/chaos

chaos: $(INSTALLED) archive ## our own jobs under `holdfast chaos`: at least 200 faults (about 30 minutes; ARGS=--quick)
	@$(BIN)/python -m tests.chaos.matrix $(ARGS)

# Made again only when the declared dependencies change.
$(INSTALLED): pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { \
		echo "$(PYTHON) is missing; install it (Debian, Ubuntu: apt-get install python3.11 python3.11-venv)" \
			"or name another one: make PYTHON=python3.12 ..."; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "$(PYTHON) is too old, Holdfast needs Python 3.11 or newer; name one: make PYTHON=python3.12 ..."; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
		echo "$(PYTHON) cannot make virtual environments; install that part: apt-get install python3.11-venv"; exit 1; }
	@$(call title,installing into $(VENV))
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

java:
	@"$${JAVA_HOME:+$$JAVA_HOME/bin/}java" -version >/dev/null 2>&1 || { \
		echo "java is missing and Spark needs it, version 17 or newer: apt-get install openjdk-17-jdk-headless"; exit 1; }

# Tests start Spark by the hundred, too: with the archive it takes half the work. Once for each machine.
archive: $(INSTALLED) java
	@$(call title,Spark's classes: the archive that lets it start faster)
	@$(BIN)/holdfast jvm-archive || echo 'going on without it'
