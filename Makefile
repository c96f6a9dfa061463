# make demo   sets up and runs the main job on the embedded model; DEMO_ARGS="--cpu-isa avx2 --threads 1"
#             as on a lesser machine
# make test   sets up and runs the tests
# make test-all  like test, with every case of tests that have many; `make test` runs a choice of them
# make test-native  the native kernels under the sanitizers, and their tests
# make test-addresses  tests that call the native kernels, with a check of every address (GCC); half an hour
# make check  linters and types
# make dist   a wheel with the native kernels of this platform, and an sdist, in dist/
# make bench  the benchmark scripts, which write benchmarks/results/
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TORCH := torch==2.13.0
DEMO_ARGS ?=
TEST_ARGS ?=
# Tests wait for servers as often as they compute: one more of them at once than there are cores.
WORKERS ?= $(shell $(PYTHON) -c "import os; print(min(4, 1 + (os.cpu_count() or 1)))")

# Modules compile when they are first imported: as they are installed, all do, which takes longer than the rest.
PIP := $(BIN)/python -m pip install -q --no-compile
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup demo test test-all test-native test-addresses check dist bench clean
.DELETE_ON_ERROR:

setup: $(VENV)/.core

# torch comes first and pinned, so that nothing else picks a build of it. The native kernels compile meanwhile: the
# package's build finds them up to date. Only levels that this machine can run: `make dist` compiles all.
$(VENV)/.core: pyproject.toml hatch_build.py $(wildcard csrc/*.*)
	$(PYTHON) -m venv $(VENV)
	$(PYTHON) csrc/build.py --runnable >/dev/null & $(PIP) $(TORCH) numpy && wait
	$(PIP) -e .
	@touch $@

# The linters apart: while they run, what the tests need can be installed (.ci/run). mypy reads the types of all
# extras that nextn/ imports, except those that pyproject.toml skips.
$(VENV)/.lint: $(VENV)/.core
	$(PIP) -e '.[dev,trace]'
	@touch $@

$(VENV)/.dev: $(VENV)/.lint
	$(PIP) -e '.[test]'
	@touch $@

demo: $(VENV)/.core
	$(BIN)/nextn demo $(DEMO_ARGS)

# A file's tests run in one process, which starts their servers once; long files come first. -rsfE: says what was
# skipped, and why, and then what failed. A process that crashes ends the run: xdist may wait without end for one that
# takes its place.
test: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -rsfE -n $(WORKERS) --max-worker-restart 0 \
		--dist loadfile --no-loadscope-reorder $(TEST_ARGS)

test-all:
	NEXTN_ALL_CASES=1 $(MAKE) test

test-native: $(VENV)/.dev
	NEXTN_ALL_CASES=1 $(BIN)/python -m pytest -rs tests/native tests/unit/ops/cpu tests/parity/test_native_model.py $(TEST_ARGS)

# Sees what test_sanitizers.py cannot: rows and weights that Python hands over, which are torch's.
ADDRESSES := build/addresses
test-addresses: $(VENV)/.dev
	rm -rf $(ADDRESSES) && mkdir -p $(ADDRESSES) && cp -r nextn $(ADDRESSES)
	$(BIN)/python csrc/build.py --runnable --target $(ADDRESSES)/nextn/ops/cpu/lib -fsanitize=address -O1 -g1
	LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libstdc++.so)" \
		ASAN_OPTIONS=detect_leaks=0 OMP_NUM_THREADS=1 PYTHONPATH=$(ADDRESSES) \
		$(BIN)/pytest -rsfE -o timeout=1800 tests/unit/ops/cpu tests/parity $(TEST_ARGS)

check: $(VENV)/.lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	@$(BIN)/python tests/line_budget.py

# The first line fails where there is no compiler; a wheel would be built all the same, without kernels.
dist: $(VENV)/.dev
	$(BIN)/python csrc/build.py >/dev/null
	$(BIN)/python -m hatchling build -d dist

bench: $(VENV)/.core
	$(BIN)/python benchmarks/record.py

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
