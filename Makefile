# Every target sets up what it needs: a virtual environment in .venv, with the versions in constraints.txt.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt

.PHONY: help demo test check bench up down docs clean
.DEFAULT_GOAL := help

help:  ## show this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# torch first and by itself: with its version settled, nothing that follows asks for another build of it.
$(VENV)/.torch: constraints.txt | $(BIN)/python
	@echo "installing torch (once)"
	$(PIP) "torch==$$(sed -n 's/^torch==//p' constraints.txt)"
	@touch $@

$(VENV)/.demo: pyproject.toml constraints.txt $(VENV)/.torch
	@echo "installing zephon-flows (once)"
	$(PIP) --editable '.[encode,flows,demo]'
	@touch $@

$(VENV)/.test: $(VENV)/.demo
	@echo "installing what the tests need (once)"
	$(PIP) --editable '.[encode,flows,demo,quicktok,openvino,s3,test]'
	@touch $@

$(VENV)/.check: $(VENV)/.test
	@echo "installing what the checks need (once)"
	$(PIP) --editable '.[encode,flows,demo,quicktok,openvino,s3,test,check,docs]'
	@touch $@

$(VENV)/.bench: $(VENV)/.test
	$(PIP) --editable '.[encode,flows,demo,quicktok,openvino,s3,test,bench]'
	@touch $@

demo: $(VENV)/.demo  ## build a feature bank from the standard library's functions, verify it and search it
	@$(BIN)/python -m examples.demo

test: $(VENV)/.test  ## run the tests
	@$(BIN)/python -m pytest $(PYTEST_ARGS)

check: $(VENV)/.check  ## ruff, mypy --strict, import-linter, docs
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

bench: $(VENV)/.bench  ## measure against peers, side by side; results in benchmarks/results
	@$(BIN)/python -m benchmarks

up: $(VENV)/.demo  ## start a Prefect server, a worker and the UI on loopback, with all deployments
	@$(BIN)/python -m deployments.local up

down: $(VENV)/.demo  ## stop what `make up` started
	@$(BIN)/python -m deployments.local down

docs: $(VENV)/.check  ## serve the documentation on loopback
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

clean:  ## remove the virtual environment and everything that was built
	rm -rf $(VENV) build site *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
