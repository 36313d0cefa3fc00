# Two commands do everything: `make serve` and `make test`. `make help` lists the rest.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
VENV_STAMP := $(VENV)/.made
RUN_STAMP := $(VENV)/.run-installed
DEV_STAMP := $(VENV)/.dev-installed
NODE_STAMP := $(VENV)/.node-found
MCP_STAMP := tests/mcp/npm/node_modules/.installed
WITH_NODE := PATH="$(CURDIR)/$(BIN):$$PATH"
WEB_STAMP := web/node_modules/.installed
WEB_DIST := src/rookery/web_dist
GALLERY := build/gallery
WEB_SOURCES := $(shell find web/src web/public -type f -not -name '*.test.*') web/index.html web/vite.config.ts web/tsconfig.json
ARGS ?=
# Where the environment forbids bytecode, every process that tests start would compile the whole server again: 2 s each.
export PYTHONDONTWRITEBYTECODE :=
# Most tests wait, for databases, processes and clocks, so there are more of them at once than cores.
WORKERS ?= $(shell $(PYTHON) -c 'import os; print(3 * len(os.sched_getaffinity(0)))')

.DEFAULT_GOAL := help
.PHONY: help serve test lint types fmt bench bench-web chaos chaos-tools chaos-agents chaos-mcp chaos-slots soak docs lock drift clean install collected unit browser web web-test gallery

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sort | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

# Not $(BIN)/python: an interrupted venv leaves that behind without pip.
$(VENV_STAMP):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Rookery needs Python 3.11 or newer; run make PYTHON=python3.11"; exit 1; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv $(VENV)
	@touch $@

# A stamp is newer than the lock it was made from: an unchanged lock installs nothing.
$(RUN_STAMP): requirements.lock pyproject.toml | $(VENV_STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

$(DEV_STAMP): requirements-dev.lock $(RUN_STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-dev.lock
	@touch $@

install: $(DEV_STAMP)

# Node builds the web application; nothing needs it at run time. The machine's is taken when it is new enough, else one
# from PyPI goes into the environment, whose programs come first on the path.
$(NODE_STAMP): requirements-node.lock | $(VENV_STAMP)
	@node -e 'const [a, b] = process.versions.node.split("."); process.exit(a > 20 || (a == 20 && b >= 19) ? 0 : 1)' 2>/dev/null \
	  && npm --version >/dev/null 2>&1 \
	  || $(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-node.lock
	@touch $@

$(WEB_STAMP): web/package-lock.json web/.npmrc $(NODE_STAMP)
	cd web && $(WITH_NODE) npm ci --no-audit --no-fund --loglevel=error
	@touch $@

# For the tests of the MCP client: the conformance kit and the reference servers.
$(MCP_STAMP): tests/mcp/npm/package-lock.json $(NODE_STAMP)
	cd tests/mcp/npm && $(WITH_NODE) npm ci --no-audit --no-fund --loglevel=error
	@touch $@

$(WEB_DIST)/index.html: $(WEB_STAMP) $(WEB_SOURCES)
	cd web && $(WITH_NODE) npx vite build --logLevel warn
	@touch $@

web: $(WEB_DIST)/index.html ## Build the web application into the package

# For tests alone: every row and card in every state, on one page. It is only for tests, so it is not minified.
$(GALLERY)/index.html: $(WEB_STAMP) $(WEB_SOURCES)
	cd web && $(WITH_NODE) npx vite build --mode gallery --outDir ../$(GALLERY) --emptyOutDir --minify false --logLevel error
	@touch $@

gallery: $(GALLERY)/index.html

web-test: $(WEB_STAMP) ## Check style, types and behavior of the web application
	cd web && $(WITH_NODE) npm run --silent check

serve: $(RUN_STAMP) $(WEB_DIST)/index.html ## Install, start the embedded database and the server (ARGS="--listen ..." is passed on)
	@exec $(BIN)/rookery serve $(ARGS)

# First what keeps one core busy, side by side; the tests use them all.
test: $(DEV_STAMP) ## Install, then lint, types and every test
	@$(MAKE) --no-print-directory --jobs 2 types web gallery web-test lint collected
	@$(MAKE) --no-print-directory unit
	@$(MAKE) --no-print-directory browser
	@$(BIN)/python -m tools.missing_programs

# Tests are rewritten to say more when they fail. Once here, and not at the same time in each process of `unit`; what does
# not load is told there.
collected: $(DEV_STAMP)
	@-$(BIN)/python -m pytest --collect-only -qq -p no:randomly --ignore=tests/browser > $(VENV)/collected.log

# Few at a time: else one process would get all the tests of the commands, which are long, and the others wait for it.
unit: $(DEV_STAMP) $(MCP_STAMP)
	$(BIN)/python -m tools.run_tests -n $(WORKERS) --maxschedchunk=16 --ignore=tests/browser $(ARGS)

# In processes of their own: Playwright keeps an event loop running, beside which no other test could run its own. Each of
# them has a server, a database and a Chromium, so there are only two.
browser: $(DEV_STAMP) $(WEB_DIST)/index.html $(GALLERY)/index.html
	$(BIN)/python -m tools.run_tests -n 2 --dist loadfile tests/browser

lint: $(DEV_STAMP) ## Check style, formatting and spelling
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell

types: $(DEV_STAMP) ## Check types (mypy --strict)
	$(BIN)/mypy

fmt: $(DEV_STAMP) ## Format the code and apply safe fixes
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(DEV_STAMP) ## Run the benchmarks (ARGS=--quick for a short run)
	@missed=0; for file in benchmarks/[a-z]*.py; do echo "== $$file"; $(BIN)/python $$file $(ARGS) || missed=1; done; exit $$missed

# Not a part of bench: it needs a browser, and its times are those of this machine.
bench-web: $(DEV_STAMP) $(WEB_DIST)/index.html ## Measure the web application in Chromium (ARGS=--quick for a short run)
	$(BIN)/python benchmarks/web/run.py $(ARGS)

chaos: $(DEV_STAMP) ## Kill processes a thousand times and judge what is left (ARGS="--seed 7 --kills 100")
	$(BIN)/python -m tests.chaos.run $(ARGS)

soak: $(DEV_STAMP) ## Serve chats of mixed sizes for an hour and print the memory over time (ARGS="--minutes 10")
	$(BIN)/python -m tests.chaos.soak $(ARGS)

chaos-tools: $(DEV_STAMP) ## Kill a replica two hundred times while agents work in workspaces (ARGS="--seed 7 --kills 20")
	$(BIN)/python -m tests.chaos.tool_kills $(ARGS)

chaos-agents: $(DEV_STAMP) ## Kill processes two hundred times while chats and their subagents work (ARGS="--seed 7 --kills 40")
	$(BIN)/python -m tests.chaos.family_kills $(ARGS)

chaos-mcp: $(DEV_STAMP) ## Kill a replica until kills have struck fifty MCP calls of each kind (ARGS="--seed 7 --kills 10")
	$(BIN)/python -m tests.chaos.mcp_kills $(ARGS)

chaos-slots: $(DEV_STAMP) ## Kill one of three replicas every 3 seconds for two minutes, the first one and then any, and ask the server meanwhile
	$(BIN)/python -m tests.chaos.slot_kills $(ARGS)

docs: $(DEV_STAMP) ## Write the reference pages that are made from the code
	$(BIN)/python -c 'from rookery.settings import keys; print(keys.reference_markdown(), end="")' > docs/reference/settings.md
	$(BIN)/python -c 'from rookery.domain.chat import transitions; print(transitions.reference_markdown(), end="")' > docs/reference/transitions.md
	$(BIN)/python -c 'from rookery.api.application import openapi_json; print(openapi_json(), end="")' > docs/api/openapi.json
	mkdir -p build
	$(BIN)/python -m tools.generate_client_models > build/client.py && mv build/client.py src/rookery/client/models.py
	$(BIN)/python -m tools.generate_client_sync > build/client.py && mv build/client.py src/rookery/client/sync_namespaces.py
	$(BIN)/python web/scripts/api_types.py
	$(BIN)/python -c 'from rookery.metrics import reference; print(reference.reference_markdown(), end="")' > docs/reference/metrics.md

lock: $(DEV_STAMP) ## Resolve the dependencies again and write the lock files
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links \
	  --group build --custom-compile-command "make lock" --upgrade pyproject.toml -o requirements.lock
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links \
	  --group dev --custom-compile-command "make lock" --constraint requirements.lock --upgrade -o requirements-dev.lock
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links \
	  --group node --custom-compile-command "make lock" --upgrade -o requirements-node.lock

# Beside the locked packages, and before them on the path.
drift: $(DEV_STAMP) ## Compare the catalog and the wires with the newest packages of the providers
	$(BIN)/uv pip install --quiet --upgrade --python $(BIN)/python --target $(VENV)/drift anthropic openai pydantic-ai-slim
	PYTHONPATH=$(VENV)/drift $(BIN)/python -m pytest tests/wire tests/models/test_capability_catalog.py $(ARGS)

clean: ## Remove the virtual environment and caches (never data)
	rm -rf $(VENV) web/node_modules tests/mcp/npm/node_modules $(WEB_DIST) .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
