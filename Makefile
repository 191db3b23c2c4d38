# Everything runs from the repository root and sets up what it needs; `make help` lists the targets.
.DEFAULT_GOAL := help
.PHONY: help setup services demo test check bench chaos latency reference lock clean

# The first that runs: a version manager may list one it does not have.
PYTHON ?= $(shell for it in python3.12 python3.11 python3; do $$it -c '' 2>/dev/null && echo $$it && break; done)
BIN := .venv/bin

help: ## list the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: .venv/.ready ## make .venv with everything that is locked in requirements.lock

.venv/.ready: requirements.lock pyproject.toml
	$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(None if (3, 11) <= v < (3, 13) else f"tailrace needs Python 3.11 or 3.12, and $(PYTHON) is {v.major}.{v.minor}; set PYTHON=")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -e .
	touch $@

services: setup ## fetch and build the real servers that the tests start (cached outside the tree)
	$(BIN)/python -m tests.services.install

demo: setup ## a 4-node training job dies; tailrace finds the first bad node, with nothing else running
	$(BIN)/tailrace demo

test: setup services ## all tests, against real servers
	$(BIN)/python -m pytest

check: setup ## lint, format, types, import contracts, generated reference
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m flows.reference --check

bench: setup services ## throughput from a full Kafka topic, written to benchmarks/results/
	$(BIN)/python -m benchmarks.run

chaos: setup services ## two minutes at 50,000 lines/s with at least 20 kills; every line is checked
	$(BIN)/python -m pytest tests/crash -m chaos --override-ini "addopts=-ra -s"

latency: setup services ## 50 XIDs during a flood and an outage of Loki: each an alert within 1 s (99th percentile)
	TAILRACE_LATENCY_ALERTS=50 $(BIN)/python -m pytest tests/latency --override-ini "addopts=-ra -s"

reference: setup ## write deploy/configs/REFERENCE.md from the configuration model
	$(BIN)/python -m flows.reference

lock: setup ## write requirements.lock anew
	$(BIN)/uv pip compile pyproject.toml --all-extras --universal --python-version 3.11 --generate-hashes \
		--no-emit-index-url --no-emit-find-links --no-annotate --no-header --upgrade --quiet -o requirements.lock

clean: ## remove .venv, caches and the demo's output
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache tailrace-demo *.egg-info
