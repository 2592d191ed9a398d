# Everything here runs on a fresh checkout: each target sets up what it needs, once. `make help` lists them.
#   make PYTHON=/path/to/python3.12 …   another Python than the one that is found
#   make demo INPUT=folder              the files of a folder of your own as messages

.DEFAULT_GOAL := help
.PHONY: help setup setup-demo setup-test demo test test-unit test-integration lint format types bench fuzz soak docs jobs-zip lock vulnerabilities clean
MAKEFLAGS += --no-print-directory

export INPUT MINUTES PYTHON
RUN := .venv/bin/python
CHECKED := app transforms stores jobs tests benchmarks

# Python for the set-up: the one asked for, else that of .venv, else the newest that Spark and Faust were made for. Where
# there is none, app/local/bootstrap.py says so with whichever Python there is.
define SET_UP
@good() { "$$1" -I -S -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null; }; \
if [ -n "$$PYTHON" ]; then set -- "$$PYTHON"; \
else \
  set -- .venv/bin/python python3.13 python3.12 python3.11 python3; \
  while [ $$# -gt 1 ] && ! good "$$1"; do shift; done; \
fi; \
command -v "$$1" >/dev/null || { \
  echo "Set-up: $$1 was not found. Install Python 3.11, 3.12 or 3.13, or name one: make PYTHON=/path/to/python3.12" >&2; \
  exit 1; }; \
exec "$$1" -I -S app/local/bootstrap.py
endef

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-18s%s\n", $$1, $$2 }' Makefile

setup: ## Set up all that the other targets need (they do it by themselves)
	$(SET_UP) setup

setup-demo:
	$(SET_UP) demo

setup-test:
	$(SET_UP) test

demo: setup-demo ## Send large files through Kafka, a worker and Spark, and compare them (INPUT=folder for your own)
	@$(RUN) -m app.cli demo $${INPUT:+"$$INPUT"}

test: setup-test ## Run all tests
	@$(RUN) -m pytest

test-unit: setup-demo ## Run the tests that need neither broker, nor S3 server, nor Spark
	@$(RUN) -m pytest -m unit

test-integration: setup-test ## Run the tests against a broker, S3 servers and Spark
	@$(RUN) -m pytest -m "not unit"

lint: setup-demo ## Check style and format
	@$(RUN) -m ruff check --quiet .
	@$(RUN) -m ruff format --check --quiet . || { echo "not formatted; run: make format" >&2; exit 1; }

format: setup-demo ## Format the code, and mend what can be mended
	@$(RUN) -m ruff check --quiet --fix-only .
	@$(RUN) -m ruff format --quiet .

types: setup-demo ## Check types
	@$(RUN) -m mypy --no-error-summary

bench: setup-test ## Measure, beside other ways to do the same; writes build/bench.json
	@$(RUN) -m benchmarks.run $(BENCH)

fuzz: setup-demo ## Feed each parser of foreign bytes a million mutated inputs
	@$(RUN) -m tests.fuzz.run $(FUZZ)

soak: setup-test ## Break workers, store and broker by chance for MINUTES=30, and look whether anything is lost
	@$(RUN) -m tests.soak.run --minutes $${MINUTES:-30} $(SOAK)

docs: setup-demo ## Write docs/configuration.md from the settings
	@$(RUN) -m app.commands.configuration_page

jobs-zip: setup-demo ## Pack the code of the Spark jobs into build/jobs.zip, for spark-submit --py-files
	@$(RUN) -m app.local.jobs_archive build/jobs.zip

lock: setup-demo ## Resolve the requirements and the jars anew
	@folder=$$(mktemp -d) && trap 'rm -rf "$$folder"' EXIT && \
	$(RUN) -m venv "$$folder" && "$$folder/bin/python" -m pip install --quiet --disable-pip-version-check uv && \
	set -- pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	    --no-emit-find-links --no-header pyproject.toml && \
	"$$folder/bin/uv" "$$@" --extra s3 -o requirements.lock && \
	"$$folder/bin/uv" "$$@" --all-extras --group dev -c requirements.lock -o requirements-dev.lock && \
	$(RUN) -m app.local.jars lock

vulnerabilities: setup-demo ## Look the locked requirements up in the advisories that the package index has
	@folder=$$(mktemp -d) && trap 'rm -rf "$$folder"' EXIT && \
	$(RUN) -m venv "$$folder" && "$$folder/bin/python" -m pip install --quiet --disable-pip-version-check pip-audit==2.10.1 && \
	"$$folder/bin/pip-audit" --strict --progress-spinner off --disable-pip --require-hashes -r requirements-dev.lock

clean: ## Remove what was made here; the jars in the cache folder stay
	@rm -rf .venv build dist ./*.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis spark-warehouse artifacts
	@find $(CHECKED) -name __pycache__ -type d -prune -exec rm -rf {} +
