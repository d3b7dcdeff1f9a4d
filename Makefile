# `make demo` and `make test` need Python 3.11 or newer and nothing else: the first one called makes .venv and installs into it.
PYTHON ?= python3
BIN := .venv/bin
# Where torch is looked for first; pip's default index is used if this one cannot be reached or the machine has a GPU.
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
# The extras of pyproject.toml that are in requirements/test.lock; requirements/demo.lock has plots alone.
EXTRAS := images pretrained text tables plots tune onnx serve studio dask ray privacy dev
# Two processes of one thread each, for two cores.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal
COMPILE := build/lock/bin/uv pip compile pyproject.toml --group build --quiet --universal --generate-hashes --no-annotate \
  --no-emit-package torch --custom-compile-command "make lock" --python-version 3.11

.PHONY: demo test test-all lint quick benchmark benchmark-check kill-test crash-test lock-test forget-test fuzz-test fault-test mutation-test
.PHONY: floors lock clean

demo: .venv/demo
	$(BIN)/cldnet demo

test: .venv/test lint
	$(PYTEST) -m "not slow"
	$(MAKE) quick

test-all: .venv/test lint  # also the tests that are marked slow
	$(PYTEST)
	$(MAKE) quick

quick: .venv/test  # the whole way from a specification to a page, in a minute or two
	$(BIN)/cldnet bench specs/quick.toml
	$(BIN)/cldnet report results/quick

benchmark: .venv/test  # how fast it is: results/benchmarks/speed.json, docs/speed/index.html and the table in docs/speed.md
	$(BIN)/python -m benchmarks.speed
	$(BIN)/python docs/tables.py

benchmark-check: .venv/test  # measures afresh, and names what is slower by more than 20 % than in the committed run
	$(BIN)/python -m benchmarks.speed --out build/speed/check.json --page build/speed/check.html --against results/benchmarks/speed.json

kill-test: .venv/test  # about ten minutes: a bench that is killed twenty times gives what an unharmed one gives
	$(BIN)/python tests/bench/kill.py specs/quick.toml --kills 20

crash-test: .venv/test  # a model that is taught and saved, killed 200 times for each solver: nothing lost, the same bits at the end
	OMP_NUM_THREADS=1 $(BIN)/python tests/crash.py --kills 200

lock-test: .venv/test  # about five minutes: eight processes teach one file 200 lessons, some are killed; no lesson is lost or learned twice
	OMP_NUM_THREADS=1 $(BIN)/python tests/locks.py --lessons 200 --processes 8

forget-test: .venv/test  # about an hour: 10,000 wrong calls of forget are refused, or do no harm; CLDNET_DATA names the data
	OMP_NUM_THREADS=1 $(BIN)/python tests/forgetting.py --out results/trust/forget.json

fuzz-test: .venv/test  # half an hour: 22,000 files that were spoiled or forged; refused in a sentence, or harmless
	OMP_NUM_THREADS=1 $(BIN)/python tests/fuzz.py

fault-test: .venv/test  # half an hour: every operation of torch and of the disk fails, in every call, one after the other
	OMP_NUM_THREADS=1 $(BIN)/python tests/estimator/test_faults.py

mutation-test: .venv/test  # half an hour: 300 changed lines of mathematics, methods, sums and store; at least 90 % must fail a test
	OMP_NUM_THREADS=1 $(BIN)/python tests/mutation.py --sample 300 --seed 0

floors: .venv/test  # tests with the lowest versions that pyproject.toml states: run it after changing a dependency or its floor
	$(BIN)/python tests/floors.py

lint: .venv/test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# tools/install.py says what it installs, how large it is and where torch comes from; `make test` adds to what `make demo` made.
.venv/demo: pyproject.toml constraints.txt requirements/demo.lock
	$(PYTHON) tools/install.py demo --cpu-index $(TORCH_INDEX)
	touch $@

.venv/test: pyproject.toml constraints.txt requirements/test.lock
	$(PYTHON) tools/install.py test --cpu-index $(TORCH_INDEX)
	touch .venv/demo $@

lock:  # writes both lock files anew, after a change of constraints.txt or of the dependencies in pyproject.toml
	$(PYTHON) -m venv build/lock
	build/lock/bin/python -m pip install --quiet uv==0.13.8
	$(COMPILE) --constraint constraints.txt $(EXTRAS:%=--extra %) --output-file requirements/test.lock
	$(COMPILE) --constraint requirements/test.lock --extra plots --output-file requirements/demo.lock

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis
