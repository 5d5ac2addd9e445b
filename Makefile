# `make run` and `make test` are all a newcomer needs; both set up what they need in .venv.
PYTHON ?= python3
VENV := .venv
DEPLOY := .venv-deploy
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -q install

.PHONY: run test test-deep quick affected mutants programs coverage browser screenshots chaos check deploy-check image-check bench lock refresh site dist clean
.DEFAULT_GOAL := run
# Without cached bytecode every process compiles the package anew, which is a fifth of its start.
unexport PYTHONDONTWRITEBYTECODE

# An environment that another Python made, or whose Python is gone, is made anew.
VERSION := -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null
WANTED := $(shell $(PYTHON) $(VERSION))
STALE := $(foreach folder,$(VENV) $(DEPLOY),$(if $(filter $(WANTED),$(shell $(folder)/bin/python $(VERSION))),,$(folder)))
.PHONY: $(addsuffix /run-ready,$(filter $(VENV),$(STALE))) $(addsuffix /ready,$(filter $(DEPLOY),$(STALE))) python
python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "smolsessions needs Python 3.11 or later, and $(PYTHON) is $(or $(WANTED),missing):" \
	  "name another one, as in make PYTHON=python3.12 run"; exit 1; }

$(VENV)/run-ready: requirements.lock pyproject.toml | python
	@echo "setting up $(VENV) from requirements.lock (once) …"
	$(PYTHON) -m venv $(if $(filter $(VENV),$(STALE)),--clear) $(VENV)
	$(PIP) --require-hashes --only-binary :all: -r requirements.lock
	$(PIP) --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/test-ready: requirements-dev.lock $(VENV)/run-ready
	@echo "adding what the tests need from requirements-dev.lock (once) …"
	$(PIP) --require-hashes --only-binary :all: -r requirements-dev.lock
	@touch $@

run: $(VENV)/run-ready
	$(BIN)/smolsessions serve

# Programs of Debian that the tests use, before any test waits for them.
programs: $(VENV)/test-ready
	$(BIN)/python -m tests.support.debian

# The fast tier.
test: check deploy-check programs
	$(BIN)/python tools/run_tests.py fast

# What a release needs beside `make test`: the deep tier, mutations, and a thousand turns under random kills.
test-deep: programs
	$(BIN)/python tools/run_tests.py deep
	$(MAKE) mutants chaos

# Linters, types, contracts, and the tests that start no service: under a minute.
quick: $(VENV)/test-ready
	$(LINT)
	$(BIN)/python tools/run_tests.py quick

# The fast tests of what changed since main, and of what imports it.
affected: programs
	$(BIN)/python tools/run_tests.py affected

# Breaks the package in one place at a time, and says which breaks no test notices; LISTS may name some.
mutants: programs
	$(BIN)/python tools/mutants.py $(LISTS)

# The fast tests outside the browser, counted line by line and branch by branch.
coverage: programs
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest -n 4 --dist worksteal
	$(BIN)/coverage combine -q
	$(BIN)/coverage report

# The page, in a real Chromium; part of `make test`.
browser: programs
	$(BIN)/python -m pytest -n 2 --dist worksteal browser_tests

# Pictures of each state of the page, at three widths in both themes; FOLDER may be given.
screenshots: $(VENV)/test-ready
	$(BIN)/python -m browser_tests.gallery $(FOLDER)

# A thousand turns under random kills beside the same turns without; TURNS, SEED, PROCESSES and STORE may be given.
chaos: $(VENV)/test-ready
	$(BIN)/python -m tests.chaos $(if $(TURNS),--turns $(TURNS)) $(if $(SEED),--seed $(SEED)) $(if $(PROCESSES),--processes $(PROCESSES)) $(if $(STORE),--store $(STORE))

define LINT
$(BIN)/ruff format --check .
$(BIN)/ruff check .
$(BIN)/mypy
$(BIN)/lint-imports
$(BIN)/python tools/check_english.py
endef

check: $(VENV)/test-ready
	$(LINT)
	$(BIN)/python tools/node_programs.py
	$(BIN)/python tools/site.py

$(DEPLOY)/ready: requirements-deploy.lock | python
	@echo "setting up $(DEPLOY) from requirements-deploy.lock (once) …"
	$(PYTHON) -m venv $(if $(filter $(DEPLOY),$(STALE)),--clear) $(DEPLOY)
	$(DEPLOY)/bin/python -m pip --disable-pip-version-check -q install --require-hashes --only-binary :all: -r requirements-deploy.lock
	@touch $@

# Renders deploy/ and checks it, and the Dockerfile; part of `make test`.
deploy-check: $(VENV)/test-ready $(DEPLOY)/ready
	$(BIN)/python -m tools.deploy_check $(DEPLOY)/bin

# Builds the image with buildah and runs it with podman, as root on Debian; some five minutes, not part of `make test`.
# BASE=debootstrap makes the base image from Debian's packages where no image registry is reached.
image-check: $(VENV)/test-ready
	BASE=$(or $(BASE),registry) $(BIN)/python -m tools.image_check

bench: $(VENV)/test-ready
	$(BIN)/python -m benchmarks

# The lock files hold names, versions and hashes for every platform and Python; no address of an index.
LOCK := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --no-emit-index-url --no-emit-find-links
lock: $(VENV)/test-ready
	$(LOCK) pyproject.toml --extra openai --extra mcp --extra workspace --group build -o requirements.lock
	$(LOCK) pyproject.toml --extra openai --extra mcp --extra workspace --extra bedrock --extra web-tools --extra docker --extra e2b --group build --group dev -c requirements.lock -o requirements-dev.lock
	$(LOCK) --group deploy -o requirements-deploy.lock
	echo 'smolagents==1.24.*' | $(LOCK) --no-deps - -o tests/data/smolagents-oldest.lock
	echo 'pytest-agent-eval==0.3.* pydantic-ai-slim pydantic-graph logfire-api genai-prices griffelib' | tr ' ' '\n' | $(LOCK) --no-deps - -o tests/data/pytest-agent-eval.lock
	echo 'litellm>=1.106 mcp>=2.2' | tr ' ' '\n' | $(LOCK) - -o tests/data/litellm.lock
	echo 'openai-agents==0.24.* llm-comply==0.5.* griffelib' | tr ' ' '\n' | $(LOCK) --no-deps - -o tests/data/openai-clients.lock
	echo 'openapi-python-client==0.29.*' | $(LOCK) - -o tests/data/openapi-python-client.lock

# What is generated from the code: openapi.yaml with its examples, the schema of agents.toml, parts of the docs' reference
# and the turns in docs/pipelines.
refresh: $(VENV)/test-ready
	$(BIN)/python -m tests.support.examples
	$(BIN)/python -m tests.support.pipeline_pages
	$(BIN)/python -m tools.refresh

# The docs as a site in the folder site, which needs no other host. `make check` builds it too, to find broken links.
site: $(VENV)/test-ready
	$(BIN)/python tools/site.py site

# The sdist, and the wheel made from it, in the folder dist, as `.github/workflows/release.yml` publishes them.
dist: $(VENV)/test-ready
	rm -rf dist
	$(BIN)/uv build --quiet --no-build-isolation --python $(BIN)/python --out-dir dist

clean:
	rm -rf $(VENV) $(DEPLOY) .mypy_cache .ruff_cache .pytest_cache .coverage*
