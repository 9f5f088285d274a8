# Needs only Python >= 3.11 and make. Everything is installed into .venv; nothing outside the project is touched.

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)

# One worker more than cores, up to 8, because many tests wait for processes and connections. A worker takes tests
# from another one when it has none left: few tests take most of the time.
CORES := $(shell getconf _NPROCESSORS_ONLN)
PARALLEL = -n $(shell echo $$(($(CORES) < 8 ? $(CORES) + 1 : 8))) --dist worksteal

export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all test-docker test-chaos test-netns test-attacks check proto docs pictures bench image compose compose-50 clean

help:  ## show this
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP)  ## create .venv and install everything into it

demo: $(STAMP)  ## see a small swarm learn and report
	$(BIN)/pfl-node demo $(ARGS)

test test-all: export PYTHONDONTWRITEBYTECODE :=  # many tests start a Python, which then need not compile us again

test: $(STAMP)  ## run the tests, without the slow ones, on all cores; one by one: ARGS="-n 0"
	$(BIN)/pytest $(PARALLEL) $(ARGS)

test-all: $(STAMP)  ## run all tests
	$(BIN)/pytest -m "" $(PARALLEL) $(ARGS)

test-docker: $(STAMP) image  ## build the images and run the tests that need a Docker engine
	$(BIN)/pytest -m docker tests/containers $(ARGS)

test-chaos: $(STAMP)  ## real processes on a bad network: 50 hosts in network namespaces
	$(BIN)/python -m tests.netns $(ARGS)

test-netns: $(STAMP)  ## real nodes behind NAT and proxies, one scenario per file; needs root
	$(BIN)/python -m tests.networks $(ARGS)

test-attacks: $(STAMP)  ## attack real nodes and print what each attack achieved
	$(BIN)/pytest -q -m "" tests/attacks $(ARGS)

check: $(STAMP)  ## lint, format, types, stale generated files
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pfl_node.wire.generate --check
	$(BIN)/python docs/reference.py --check

proto: $(STAMP)  ## generate the gRPC stubs from proto/
	$(BIN)/python -m pfl_node.wire.generate

docs: $(STAMP)  ## write what is generated in the documents
	$(BIN)/python docs/reference.py

pictures: $(STAMP)  ## take the pictures of the README again; needs Chromium
	$(BIN)/python docs/pictures.py $(ARGS)

bench: $(STAMP)  ## run the benchmarks
	$(BIN)/python -m benchmarks $(ARGS)

image:  ## build the images pfl-node and pfl-bootstrap; BuildKit is not needed
	$(or $(wildcard $(BIN)/python),$(PYTHON)) docker/build.py $(ARGS)

compose: image  ## a swarm of N=10 containers
	cd compose && docker compose up --scale node=$(or $(N),10) $(ARGS)

compose-50: $(STAMP) image  ## 50 containers, measured: time to ready, memory, 10 killed and replaced
	$(BIN)/python -m benchmarks.containers $(or $(N),50) $(ARGS)

clean:  ## remove what was built or cached; .venv stays
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -path ./$(VENV) -prune -o -name __pycache__ -type d -exec rm -rf {} +

$(STAMP): pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed; say which: make PYTHON=/path/to/python3"; exit 1; }
	$(PYTHON) -m venv $(VENV)
