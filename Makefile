# make serve: install into .venv, fetch the quickstart model and serve it on http://127.0.0.1:8000
# make test:  install with the development tools, then lint, types, sizes and the fast tests

PYTHON ?= python3
VENV := .venv
PIP := $(VENV)/bin/python -m pip --disable-pip-version-check --no-input
NATIVE := CMakeLists.txt $(wildcard csrc/cpu/*)

.PHONY: serve test install install-dev clean

serve: install
	$(VENV)/bin/octavo serve

test: install-dev
	scripts/lint
	scripts/check
	scripts/test

install: $(VENV)/.installed
install-dev: $(VENV)/.installed-dev

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo 'Octavo needs Python 3.11 or later; name one with: make PYTHON=python3.12 ...' >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

# Editable: Python files are used where they are; a change of these prerequisites installs again.
$(VENV)/.installed: pyproject.toml $(NATIVE) | $(VENV)/bin/python
	$(PIP) install -e .
	touch $@

$(VENV)/.installed-dev: pyproject.toml $(NATIVE) | $(VENV)/bin/python
	$(PIP) install -e '.[dev]'
	touch $@ $(VENV)/.installed

clean:
	rm -rf $(VENV) build dist
