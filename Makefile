# `make run` and `make test` set up everything they need in .venv; README.md says what each prints.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PYTEST_FLAGS ?= -n auto --dist worksteal

.PHONY: help run test lint gpu-test benchmark clean
help:
	@echo "make run    set up, then perfgate run --mode both (the GPU's typical suite, or the CPU's smoke suite)"
	@echo "make test   set up, then the tests"
	@echo "make lint   set up, then ruff, mypy --strict and the import rules"

run: $(READY)
	$(BIN)/perfgate run --mode both

test: $(READY)
	$(BIN)/python -m pytest $(PYTEST_FLAGS)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

gpu-test: $(READY)
	$(BIN)/python -m pytest -m gpu tests/gpu

benchmark: $(READY)
	$(BIN)/python -m pytest -m benchmark tests/benchmarks

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), "perfgate needs Python 3.11 or newer: make PYTHON=python3.12"'
	$(PYTHON) -m venv $(VENV) || { echo "next: apt-get install python3-venv" >&2; rm -rf $(VENV); exit 1; }
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
