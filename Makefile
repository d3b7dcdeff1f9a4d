# `make demo` and `make test` need Python 3.11 or newer and nothing else: the first one called makes .venv and installs into it.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test lint clean

demo: .venv/installed
	$(BIN)/cldnet demo

test: .venv/installed lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2  # two processes of one thread each: two cores

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[images,tables,plots,dev]"
	touch $@

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis
