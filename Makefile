# On a fresh machine with Python 3.11 or later and make: `make demo`, `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
EXTRAS := plot,store,ray,dask,mpi,torch
MINUTES ?= 20
OTHERS := hosts or docs or papers

.PHONY: demo quick test check soak coverage bench clean

demo: $(VENV)/.core
	$(BIN)/kofn demo

# Tests that start no process: codes, rounds, the protocol, simulated engines.
quick: $(VENV)/.dev
	$(BIN)/python -m pytest --quick -n 2 --dist loadfile

# Tests with processes mostly wait, so four runs share the cores: without processes, of each engine,
# of what stands on engines, and on hosts, docs and papers. The last is shown as it runs, the others
# after it. TESTS=tests/test_arrays.py chooses files; 5 is pytest's status when there is no such test.
test: check
	@pytest="$(BIN)/python -m pytest -p no:cacheprovider $(TESTS)"; status=0; \
	$$pytest -m 'not (engine or $(OTHERS))' > .tests-1.log 2>&1 & beside=$$!; \
	$$pytest -m 'engine and not ($(OTHERS))' -k test_engine_ > .tests-2.log 2>&1 & beside="$$beside $$!"; \
	$$pytest -m 'engine and not ($(OTHERS))' -k 'not test_engine_' > .tests-3.log 2>&1 & beside="$$beside $$!"; \
	trap 'kill $$beside' INT TERM; \
	$$pytest -m '$(OTHERS)' || test $$? = 5 || status=1; \
	for other in $$beside; do wait $$other || test $$? = 5 || status=1; done; \
	cat .tests-?.log; exit $$status

check: $(VENV)/.dev
	$(BIN)/ruff check src tests examples
	$(BIN)/ruff format --check src tests examples
	$(BIN)/mypy

# Long runs: many more random scripts, examples, kills and interrupts than `make test` has time for.
soak: $(VENV)/.dev
	$(BIN)/python tests/soak.py --minutes $(MINUTES)

# Lines that the tests run; those that only children of engines run are left out (pyproject.toml).
coverage: $(VENV)/.dev
	$(BIN)/python -m coverage run -m pytest
	$(BIN)/python -m coverage report

bench: $(VENV)/.core
	$(BIN)/kofn bench overhead
	$(BIN)/kofn bench reaction

$(VENV)/.core: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "kofn needs Python 3.11 or later: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet -e .
	touch $@

$(VENV)/.dev: $(VENV)/.core
	$(BIN)/python -m pip install --quiet -e '.[$(EXTRAS)]' --group dev
	touch $@

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage .tests-?.log
