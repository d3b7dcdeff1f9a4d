# `make demo` and `make test` need Python 3.11 or newer and nothing else: the first one called makes .venv and installs into it.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test lint quick benchmark benchmark-check kill-test crash-test fuzz-test fault-test mutation-test clean

demo: .venv/installed
	$(BIN)/cldnet demo

test: .venv/installed lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2  # two processes of one thread each: two cores
	$(MAKE) quick

quick: .venv/installed  # the whole way from a specification to a page, in a minute or two
	$(BIN)/cldnet bench specs/quick.toml
	$(BIN)/cldnet report results/quick

benchmark: .venv/installed  # how fast it is: results/benchmarks/speed.json, docs/speed/index.html and the table in docs/speed.md
	$(BIN)/python -m benchmarks.speed
	$(BIN)/python docs/tables.py

benchmark-check: .venv/installed  # measures afresh, and names what is slower by more than 20 % than in the committed run
	$(BIN)/python -m benchmarks.speed --out build/speed/check.json --page build/speed/check.html --against results/benchmarks/speed.json

kill-test: .venv/installed  # about ten minutes: a bench that is killed twenty times gives what an unharmed one gives
	$(BIN)/python tests/bench/kill.py specs/quick.toml --kills 20

crash-test: .venv/installed  # a model that is taught and saved, killed 200 times for each solver: nothing lost, the same bits at the end
	OMP_NUM_THREADS=1 $(BIN)/python tests/crash.py --kills 200

fuzz-test: .venv/installed  # half an hour: 22,000 files that were spoiled or forged; refused in a sentence, or harmless
	OMP_NUM_THREADS=1 $(BIN)/python tests/fuzz.py

fault-test: .venv/installed  # half an hour: every operation of torch and of the disk fails, in every call, one after the other
	OMP_NUM_THREADS=1 $(BIN)/python tests/test_faults.py

mutation-test: .venv/installed  # half an hour: 300 changed lines of mathematics, methods, sums and store; at least 90 % must fail a test
	OMP_NUM_THREADS=1 $(BIN)/python tests/mutation.py --sample 300 --seed 0

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy -p benchmarks.speed
	$(BIN)/lint-imports

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[images,pretrained,tables,plots,tune,onnx,dev]"
	touch $@

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis
