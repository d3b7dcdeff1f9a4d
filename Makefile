# `make demo` and `make test` need Python 3.11 or newer and nothing else: the first one called makes .venv and installs into it.
PYTHON ?= python3
BIN := .venv/bin
# The extras of pyproject.toml that are in requirements.lock.
EXTRAS := images pretrained tables plots tune onnx dev

.PHONY: demo test lint quick benchmark benchmark-check kill-test crash-test lock-test forget-test fuzz-test fault-test mutation-test
.PHONY: floors lock clean

demo: .venv/installed
	$(BIN)/cldnet demo

test: .venv/installed lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal  # two processes of one thread each: two cores
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

lock-test: .venv/installed  # about five minutes: eight processes teach one file 200 lessons, some are killed; no lesson is lost or learned twice
	OMP_NUM_THREADS=1 $(BIN)/python tests/locks.py --lessons 200 --processes 8

forget-test: .venv/installed  # about an hour: 10,000 wrong calls of forget are refused, or do no harm; CLDNET_DATA names the data
	OMP_NUM_THREADS=1 $(BIN)/python tests/forgetting.py --out results/trust/forget.json

fuzz-test: .venv/installed  # half an hour: 22,000 files that were spoiled or forged; refused in a sentence, or harmless
	OMP_NUM_THREADS=1 $(BIN)/python tests/fuzz.py

fault-test: .venv/installed  # half an hour: every operation of torch and of the disk fails, in every call, one after the other
	OMP_NUM_THREADS=1 $(BIN)/python tests/test_faults.py

mutation-test: .venv/installed  # half an hour: 300 changed lines of mathematics, methods, sums and store; at least 90 % must fail a test
	OMP_NUM_THREADS=1 $(BIN)/python tests/mutation.py --sample 300 --seed 0

floors: .venv/installed  # tests with the lowest versions that pyproject.toml states: run it after changing a dependency or its floor
	$(BIN)/python tests/floors.py

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# All packages come from the lock, by hash. Not so torch, whose wheels differ by source: the CPU build is taken where its index can
# be reached or pip is configured to find it elsewhere; its own dependencies are in the lock.
.venv/installed: pyproject.toml requirements.lock
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --no-deps --require-hashes --requirement requirements.lock
	$(BIN)/python -m pip install --quiet --retries 1 --extra-index-url https://download.pytorch.org/whl/cpu --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	$(BIN)/python -m pip check
	touch $@

lock:  # writes requirements.lock anew, after a change of constraints.txt or of the dependencies in pyproject.toml
	$(PYTHON) -m venv build/lock
	build/lock/bin/python -m pip install --quiet uv==0.13.8
	build/lock/bin/uv pip compile --quiet --universal --generate-hashes --no-annotate --no-emit-package torch \
	  --custom-compile-command "make lock" --python-version 3.11 --constraint constraints.txt $(EXTRAS:%=--extra %) \
	  --output-file requirements.lock pyproject.toml

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis
