# Everything a newcomer needs: `make demo` and `make test` on a fresh machine with python3.11, git and make.
PYTHON ?= python3.11
UV     := .tools/bin/uv
RUN    := .venv/bin
COMPILE := $(UV) pip compile --quiet --universal --generate-hashes --python-version 3.11 pyproject.toml
SERVICE := --extra api --extra postgres --extra redis --extra registry --extra tracing
WORKER  := $(SERVICE) --extra train
WINDOW ?= data/windows/cpu-contention-node
BENCH  ?=
# Commit with the bundle that the shipped one adds trees to.
EARLIER := 59ccc931

# Without bytecode every process that a test starts compiles all packages, at 2 to 3 seconds each.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all lint audit serve bench train alarm lock openapi clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-9s %s\n", $$1, $$2}'

.tools/bin/uv:
	@$(PYTHON) -m pip --version >/dev/null || { echo "error: $(PYTHON) has no pip; on Debian: apt-get install python3-pip" >&2; exit 1; }
	$(PYTHON) -m pip install --quiet --disable-pip-version-check --target .tools uv

.venv/.synced: requirements.lock pyproject.toml | .tools/bin/uv
	test -x $(RUN)/python || $(UV) venv --quiet --python $(PYTHON) .venv
	$(UV) pip sync --quiet --python $(RUN)/python --require-hashes requirements.lock
	$(UV) pip install --quiet --python $(RUN)/python --no-deps --no-build-isolation --editable .
	touch $@

setup: .venv/.synced ## Create .venv from requirements.lock (hash-checked)

demo: setup ## Start the service, POST a real window, print the diagnosis (WINDOW=path for another)
	@$(RUN)/python -m rca_api.shell.demo --window "$(WINDOW)"

test: setup ## Run the unit tests, and a part of the system tests (smoke)
	$(RUN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder -m "smoke or not (system or prose)"

test-all: setup ## Run every test, with 200 kills of a service and other long ones
	$(RUN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder --long

lint: setup ## Formatting, style, types, import contract
	$(RUN)/ruff format --check .
	$(RUN)/ruff check .
	$(RUN)/mypy
	$(RUN)/lint-imports
	$(RUN)/python -m pytest -q -n 2 -m prose tests/test_documentation.py

audit: setup ## Compare requirements.lock with the database of known vulnerabilities
	$(RUN)/python .ci/audit.py

serve: setup ## Serve on http://127.0.0.1:8080 without keys (page at /ui, docs at /docs)
	$(RUN)/rca serve --no-auth

bench: setup ## Latency and memory tables (BENCH=name for one)
	$(RUN)/python -m benchmarks $(BENCH)

.cache/captures: data/testbed/captures/manifest.json | setup
	rm -rf $@
	$(RUN)/rca testbed unpack data/testbed/captures --output $@

.cache/gpu: data/testbed/gpu/manifest.json | setup
	rm -rf $@
	$(RUN)/rca testbed unpack data/testbed/gpu --output $@

# The bundle that the shipped one adds trees to. It needs the history: git fetch --unshallow.
.cache/earlier/$(EARLIER):
	mkdir -p .cache/earlier
	rm -rf $@.new && mkdir -p $@.new
	git archive --output $@.tar $(EARLIER) models/rca_models/baseline
	tar -x --strip-components 3 -C $@.new -f $@.tar
	mv $@.new $@

train: setup .cache/captures .cache/gpu .cache/earlier/$(EARLIER) ## Train a bundle as the shipped one was, and write its card
	$(RUN)/rca train --windows 32768 --continue-from .cache/earlier/$(EARLIER) --collection .cache/captures \
	  --collection .cache/gpu --collection data/windows --output models/rca_models/baseline --card models/README.md

alarm: setup .cache/captures .cache/gpu ## Fit the alarm of the shipped bundle again
	$(RUN)/rca train --alarm-of shipped --collection .cache/captures --collection .cache/gpu \
	  --output models/rca_models/baseline

openapi: setup ## Regenerate api/openapi.json
	$(RUN)/python -m rca_api.shell.openapi > api/openapi.json

lock: .tools/bin/uv ## Re-resolve requirements.lock
	$(COMPILE) --group dev $(WORKER) --extra mcp --output-file requirements.lock
	$(COMPILE) --constraint requirements.lock $(SERVICE) --output-file api/deploy/service.lock
	$(COMPILE) --constraint requirements.lock $(WORKER) --output-file api/deploy/worker.lock

clean: ## Remove the environment and caches
	rm -rf .venv .tools .cache .pytest_cache .mypy_cache .ruff_cache .hypothesis
