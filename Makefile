# On a fresh machine with Python 3.11 or later and make: `make demo`, `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
EXTRAS := plot,store,ray,dask,mpi,torch
MINUTES ?= 20
TESTS ?= tests
AT_ONCE ?= 4
LOWEST := .lowest
PYTEST := $(BIN)/python -m pytest
FILES := --dist loadfile --no-loadscope-reorder
SUMMARY := .summary
# Tests start a thousand processes. Where this is set, each of them compiles kofn anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo quick lowest test test-all check soak coverage bench bench-check peers docs release-check clean

demo: $(VENV)/.core
	$(BIN)/kofn demo

# Tests that start no process: codes, rounds, the protocol, simulated engines.
quick: $(VENV)/.dev
	$(PYTEST) --quick -n 2 $(FILES) $(TESTS)

# The same with the lowest versions that pyproject.toml allows, in an environment of its own. What
# those say of newer libraries that they use is none of ours.
lowest: $(LOWEST)/.installed
	$(LOWEST)/bin/python -m pytest --quick -n 2 $(FILES) -W ignore::DeprecationWarning $(TESTS)

# All tests but the long ones. Tests with processes mostly wait, so four files run at a time, and
# `check` beside them. TESTS=tests/test_arrays.py chooses files; 5 is pytest's status without a test.
test: $(VENV)/.dev
	@rm -f $(SUMMARY); $(MAKE) --no-print-directory check > .check.log 2>&1 & check=$$!; \
	trap 'kill $$check' INT TERM; status=0; \
	$(PYTEST) -n $(AT_ONCE) $(FILES) --summary $(SUMMARY) $(TESTS) \
	|| test $$? = 5 || status=1; \
	wait $$check || status=1; cat .check.log; exit $$status

# `make test`, then the long tests, one after the other. What failed or was skipped in either is
# said in the end.
test-all: $(VENV)/.dev
	@status=0; $(MAKE) --no-print-directory test || status=1; \
	$(PYTEST) -m long --summary $(SUMMARY) $(TESTS) || test $$? = 5 || status=1; \
	cat .check.log $(SUMMARY); exit $$status

check: $(VENV)/.dev
	$(BIN)/ruff check src tests examples site
	$(BIN)/ruff format --check src tests examples site
	$(BIN)/mypy

# Long runs: many more random scripts, examples, kills and interrupts than `make test` has time for.
soak: $(VENV)/.dev
	$(BIN)/python tests/soak.py --minutes $(MINUTES)

# Lines that the tests run; those that only children of engines run are left out (pyproject.toml).
# The report comes whether the tests pass or not.
coverage: $(VENV)/.dev
	$(BIN)/python -m coverage erase
	status=0; $(BIN)/python -m coverage run -p -m pytest $(TESTS) || status=1; \
	$(BIN)/python -m coverage combine -q && $(BIN)/python -m coverage report || status=1; \
	exit $$status

# The documentation site, without the network; warnings are errors. It is in build/site.
docs: $(VENV)/.docs
	$(BIN)/python site/build.py

# Builds what would be published, and tries it in a clean environment of every Python that is here.
release-check: $(VENV)/.docs
	$(BIN)/python site/release.py

# All benchmarks, small: under five minutes on a quiet machine. `kofn bench NAME` is the full size.
bench: $(VENV)/.dev
	$(BIN)/kofn bench all --quick --out benchmarks/history

# Fails where a ratio is more than 20 % worse than benchmarks/recorded.json in three tries.
bench-check: $(VENV)/.dev
	$(BIN)/kofn bench check benchmarks/recorded.json

# The peers of `kofn bench peers` that no extra installs: Spark (needs Java) and dask-ml.
peers: $(VENV)/.dev
	$(BIN)/python -m pip install --quiet --group peers

$(VENV)/.core: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "kofn needs Python 3.11 or later: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet -e .
	touch $@

$(VENV)/.dev: $(VENV)/.core
	$(BIN)/python -m pip install --quiet -e '.[$(EXTRAS)]' --group dev
	touch $@

$(LOWEST)/.installed: pyproject.toml tests/lowest.py
	$(PYTHON) -m venv --clear $(LOWEST)
	$(LOWEST)/bin/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(LOWEST)/bin/python tests/lowest.py plot store ray dask mpi otel > $(LOWEST)/requirements.txt
	$(LOWEST)/bin/python -m pip install --quiet -r $(LOWEST)/requirements.txt
	$(LOWEST)/bin/python -m pip install --quiet --no-deps -e .
	touch $@

$(VENV)/.docs: $(VENV)/.core
	$(BIN)/python -m pip install --quiet --group docs
	touch $@

clean:
	rm -rf $(VENV) $(LOWEST) build .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage* .check.log $(SUMMARY)
