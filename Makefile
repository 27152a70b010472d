# One target per check, the same ones in CI. `make` alone lists them.
#   VENV=DIR     where demo and the developers' targets keep their environment (default .venv)
#   PYTHON=EXE   the Python to build it with, 3.10 or newer (default: the first that serves)
#   JOBS=N       test processes (default 2)
VENV ?= .venv
JOBS ?= 2
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11 python3.10 python; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 10))' >/dev/null 2>&1 && { echo $$p; break; }; done)

TESTS = tests/unit tests/contract tests/integration
SUITE = pytest -c $(CURDIR)/pyproject.toml --rootdir $(CURDIR) -q -ra -n $(JOBS) --dist loadgroup
NEW = build/new
# The user's own server and settings stay out of the tests; the demo keeps the user's folders, but uses the embedded server.
CLEAN = env -u PYTHONPATH -u FLOWCTL_BROKER_URL -u FLOWCTL_JOIN -u FLOWCTL_HOME -u FLOWCTL_STORAGE -u FLOWCTL_SECRET_KEY
DEMO = env -u PYTHONPATH -u FLOWCTL_BROKER_URL -u FLOWCTL_JOIN $(VENV)/bin
IS_UP = from flowctl.broker.embedded import running_server; from flowctl.broker.settings import Settings; \
	print(running_server(Settings.from_env().home) is not None)
PIP = -m pip --disable-pip-version-check -q

.DEFAULT_GOAL := help
.PHONY: help demo test check format bench acceptance chaos wheel clean python develop

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/\1|\2/p' $(firstword $(MAKEFILE_LIST)) | while IFS='|' read -r t d; do printf 'make %-11s %s\n' "$$t" "$$d"; done

python:
	@[ -n "$(PYTHON)" ] || { echo "flowctl needs Python 3.10 or newer and found none; install one, or name it: make PYTHON=/path/to/python3" >&2; exit 2; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "$(PYTHON) cannot make virtual environments; on Debian and Ubuntu: apt install python3-venv" >&2; exit 2; }

$(VENV)/bin/python: | python
	@echo "demo: a virtual environment in $(VENV)"
	@$(PYTHON) -m venv $(VENV)

demo: $(VENV)/bin/python ## set everything up and run the digits sweep on this machine
	@rm -rf build/lib build/bdist.*
	@if [ -e $(VENV)/.develop ]; then :; else echo "demo: installing flowctl and the examples' packages (a minute)"; \
		$(VENV)/bin/python $(PIP) install '.[examples]'; fi
	@up=$$($(DEMO)/python -c '$(IS_UP)') || exit 1; \
	$(DEMO)/flowctl run examples/digits.py && $(DEMO)/flowctl results; code=$$?; \
	[ "$$up" = True ] || $(DEMO)/flowctl down || echo "demo: the server stays up for what still runs"; exit $$code

# Everything here uses the wheel that was built from the sdist, in an environment made for it, and never the checkout.
test: python ## pass the tests: build, install, lint, types, the command, then the suite (minutes)
	@rm -rf build && mkdir -p build/away build/state
	@echo "test 1/6: a fresh environment in $(NEW)"
	@$(PYTHON) -m venv $(NEW) && $(NEW)/bin/python $(PIP) install build
	@echo "test 2/6: sdist, then the wheel from the sdist"
	@$(NEW)/bin/python -m build --outdir build/dist . >build/build.log 2>&1 || { tail -25 build/build.log; exit 1; }
	@echo "test 3/6: installing the wheel (a minute or two)"
	@$(NEW)/bin/python $(PIP) install "$$(echo build/dist/*.whl)[test,lint,examples]" && $(NEW)/bin/python -m pip check
	@echo "test 4/6: ruff, mypy, import direction"
	@$(MAKE) --no-print-directory lint BIN=$(CURDIR)/$(NEW)/bin
	@echo "test 5/6: the command, away from the checkout"
	@cd build/away && $(CLEAN) ../new/bin/flowctl --version && $(CLEAN) ../new/bin/flowctl plan $(CURDIR)/examples/digits.py && \
		$(CLEAN) ../new/bin/python -c 'import flowctl; assert "site-packages" in flowctl.__file__, flowctl.__file__'
	@echo "test 6/6: the suite, against the installed wheel"
	@cd build/away && $(CLEAN) XDG_STATE_HOME=$(CURDIR)/build/state PATH=$(CURDIR)/$(NEW)/bin:$$PATH \
		../new/bin/$(SUITE) -m "not acceptance" $(addprefix $(CURDIR)/,$(TESTS))

# The checks that need no server; BIN says whose tools.
.PHONY: lint
lint:
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

$(VENV)/.develop: pyproject.toml | $(VENV)/bin/python
	@$(VENV)/bin/python $(PIP) install -e '.[test,lint,examples]' && touch $@

develop: $(VENV)/.develop ## an editable install with all tools in VENV

check: develop ## ruff, mypy, import direction: before each commit
	@$(MAKE) --no-print-directory lint BIN=$(abspath $(VENV))/bin

format: develop ## rewrite the layout of the code as ruff likes it
	@$(VENV)/bin/ruff format . && $(VENV)/bin/ruff check --fix .

bench: develop ## the benchmarks: one JSON line each, with a floor measured in the same run
	@$(CLEAN) $(VENV)/bin/python benchmarks/run_all.py

acceptance: develop ## the acceptance list at its full size (long)
	@$(CLEAN) $(VENV)/bin/$(SUITE) --timeout 1800 -m acceptance tests

chaos: develop ## seeded faults, with the invariants checked after each (long)
	@$(CLEAN) $(VENV)/bin/$(SUITE) --timeout 1800 tests/chaos

wheel: $(VENV)/bin/python ## build/dist: the sdist, and the wheel made from it
	@$(VENV)/bin/python $(PIP) install build && $(VENV)/bin/python -m build --outdir build/dist .

clean: ## remove what was built here; runs and the server's state stay
	rm -rf build dist src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
