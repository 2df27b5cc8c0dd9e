# Commands of the project. `make` alone lists them. Python 3.11 or newer and make are all it takes.

SHELL := /bin/sh
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

VENV  := .venv
STAMP := $(VENV)/.installed
RUN   := $(VENV)/bin/python
BIN   := $(abspath $(VENV))/bin
PEERS := build/peers

# The first interpreter that is new enough; `make PYTHON=/path/to/python env` picks another.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python3.14 python; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)

# The stamp holds the folder that the environment was built in: one that was moved, or whose Python
# has gone, counts as missing.
ifneq ($(shell $(RUN) -c 'print(open("$(STAMP)").read().strip())' 2>/dev/null),$(CURDIR))
.PHONY: $(STAMP)
endif

.PHONY: help env book test lab bench bench-peers constraints clean

help: ## list the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-12s %s\n", $$1, $$2}' Makefile

env: $(STAMP) ## build .venv, if it is missing or out of date

book: $(STAMP) ## execute every chapter, write the notebooks and the HTML book
	@$(RUN) -m richbook book

test: $(STAMP) ## run the whole test suite; make test ARGS="-k sweep" runs a part
	@PATH="$(BIN):$$PATH" $(RUN) -m pytest $(ARGS)

lab: $(STAMP) ## open the book in JupyterLab
	@PATH="$(BIN):$$PATH" $(RUN) -m richbook lab

bench: $(STAMP) ## measure the speeds and sizes that the project promises
	@$(RUN) -m tests.bench

# The others live in an environment of their own on top of .venv, which keeps to what is pinned.
bench-peers: $(STAMP) ## compare CKA and D_LR with other packages, which it installs in build/peers
	@test -x $(PEERS)/bin/python || $(RUN) -m venv $(PEERS)
	@$(RUN) -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
		> "$$($(PEERS)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/below.pth"
	@$(PEERS)/bin/python -m pip install --disable-pip-version-check --quiet \
		-c constraints.txt -e '.[peers]'
	@$(PEERS)/bin/python -m tests.bench.peers

constraints: $(STAMP) ## pin what is installed in .venv now
	@$(RUN) -m tests.house.closure > constraints.new && mv constraints.new constraints.txt

clean: ## remove .venv and everything built
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find richbook tests notebooks -name __pycache__ -prune -exec rm -rf {} +

# An environment without a stamp is the rest of an interrupted build: start again from nothing. One
# with a stamp that is merely older than the lists is brought up to date in place.
$(STAMP): pyproject.toml constraints.txt
	@if [ -z "$(PYTHON)" ]; then \
		echo "richbook needs Python 3.11 or newer, and finds none under the names python3, python3.11"; \
		echo "... python3.14. Install one, or say where it is: make PYTHON=/path/to/python env"; \
		exit 1; fi
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "richbook needs Python 3.11 or newer; $(PYTHON) is" \
		     "$$($(PYTHON) --version 2>&1)."; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { \
		echo "$(PYTHON) cannot make virtual environments: its venv or ensurepip module is missing."; \
		echo "On Debian and Ubuntu: apt install python3-venv, then run this again."; exit 1; }
	@if [ "$$($(RUN) -c 'print(open("$@").read().strip())' 2>/dev/null)" != "$(CURDIR)" ]; then \
		echo "Building $(VENV) with $$($(PYTHON) --version). This takes a few minutes, once."; \
		rm -rf $(VENV) && $(PYTHON) -m venv $(VENV); \
	else echo "Bringing $(VENV) up to date."; fi
	@rm -f $@
	@$(RUN) -m pip install --disable-pip-version-check --quiet \
		-c constraints.txt -e '.[book,test]'
	@echo "$(CURDIR)" > $@
