# All that is needed is Python 3.11 or newer and make; everything else is fetched. `make help` lists the targets.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.installed
DEV := $(VENV)/.dev
KERNEL := $(VENV)/.kernel
PEERS := $(VENV)/.peers
LANGUAGES := $(VENV)/.languages
DOCS := $(or $(MILLRACE_CACHE),$(or $(XDG_CACHE_HOME),$(HOME)/.cache)/millrace)/docs
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Where it is set, each of the hundreds of processes of the tests would compile all of Millrace again.
unexport PYTHONDONTWRITEBYTECODE

define PINS_HEAD
# The packages with which the demo runs, and the images are built. Written by `make pins`; pyproject.toml says which
# packages are wanted at all.
endef
define DOCS_PINS_HEAD
# What `make docs` installs into an environment of its own. Written by `make pins`.
endef
define DEV_PINS_HEAD
# What the tests and checks need besides requirements.txt. Written by `make pins`.
--requirement requirements.txt
endef
export PINS_HEAD DEV_PINS_HEAD DOCS_PINS_HEAD

.DEFAULT_GOAL := help
.SUFFIXES:
.PHONY: help demo check coverage generate docs test test-slow test-servers test-languages chaos test-ddl fuzz lint types fmt bench bench-jobs bench-latency bench-snapshot bench-peers memory local kernel spark-package pins clean

help: ## List the targets
	@$(PYTHON) -c 'import re; \
	text = open("Makefile").read(); \
	[print(f"make {name:<12} {what}") for name, what in re.findall(r"(?m)^([\w-]+):.*## (.*)", text)]'

# `exec` makes the demo a child of make itself: it ends when make does, and ends all that it started.
# The address has a password, which a process's arguments would show to everybody.
demo: $(KERNEL) ## Run the whole pipeline here and check it; SOURCE=mysql://user:password@host:port KAFKA=host:port make demo for yours
	@export MILLRACE_DEMO_SOURCE="$$SOURCE"; exec $(BIN)/python -m millrace.cli demo --end-with-parent \
	    $${KAFKA:+--kafka "$$KAFKA"} $${REGISTRY:+--registry "$$REGISTRY"} \
	    $(if $(STAY),--stay) $(ARGS)

# Two at a time for each core and one for each 4 GB of memory at the most, each with servers of its own.
test: $(DEV) $(KERNEL) ## Run all tests; ARGS="-m 'not live'" and the like narrow them down, ARGS="-n 0" runs one at a time
	@exec $(BIN)/python -m pytest --numprocesses auto --dist loadfile --no-loadscope-reorder -m "not slow" $(ARGS)

test-slow: $(DEV) $(KERNEL) ## Run the tests that `make test` leaves out, since they take minutes and vary what others show
	@exec $(BIN)/python -m pytest --numprocesses 2 --dist loadfile -m slow $(ARGS)

check: $(DEV) $(KERNEL) ## What to run while working: style, types and unit tests, in some three minutes
	@$(MAKE) --no-print-directory --jobs 2 --output-sync lint types
	@exec $(BIN)/python -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder tests/unit $(ARGS)

# Most are fetched. SERVERS="mysql://root:password@127.0.0.1:3307/folder/of/its/logs …" names others that run.
test-servers: $(DEV) $(KERNEL) ## Run the pipeline on servers of many versions and on Galera; SERVERS="mysql://root@host:port/logs" adds yours
	@exec $(BIN)/python -m pytest tests/servers/pipeline.py tests/servers/galera.py -n 0 -rA $(ARGS)

test-languages: $(LANGUAGES) ## Read records with Avro's libraries for C, Go, Java, JavaScript, Python, Rust; ARGS="-k 'not rust'" leaves one out
	@exec $(BIN)/python -m pytest tests/languages/cross_read.py -n 0 -rA $(ARGS)

chaos: $(DEV) $(KERNEL) ## Inject faults for an hour while rows are written; ARGS="--minutes 10 --seed 7" and the like
	@exec $(BIN)/python -m tests.chaos $(ARGS)

test-ddl: $(DEV) $(KERNEL) ## Compare definitions with servers' after DDL made at random; ARGS="--statements 20000 --seed 7" and the like
	@exec $(BIN)/python -m tests.ddl $(ARGS)

fuzz: $(DEV) $(KERNEL) ## Change real logs at random and read them, for an hour; ARGS="--minutes 5 --processes 2" and the like
	@exec $(BIN)/python -m tests.fuzz $(ARGS)

lint: $(DEV) ## Check style, formatting and security rules
	$(BIN)/ruff check --no-cache .
	$(BIN)/ruff format --check .
	$(BIN)/bandit --quiet --configfile pyproject.toml --recursive millrace services spark_jobs tools docs

types: $(DEV) ## Check types
	$(BIN)/mypy

fmt: $(DEV) ## Format the code and repair what can be repaired
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(DEV) $(KERNEL) ## Measure the codec, the stages and the pipeline; ARGS="--help" tells the options
	@exec $(BIN)/python -m benchmarks $(ARGS)

bench-latency: $(DEV) $(KERNEL) ## Measure how long a row takes from INSERT to a consumer; ARGS="--seconds 20" and the like
	@exec $(BIN)/python -m benchmarks.latency $(ARGS)

bench-snapshot: $(DEV) $(KERNEL) ## Measure a snapshot of a large table beside Debezium's; ARGS="--rows 500000 --writes 300" and the like
	@exec $(BIN)/python -m benchmarks.snapshot $(ARGS)

bench-jobs: $(DEV) $(KERNEL) ## Measure the Spark jobs over large topics; ARGS="--scale 0.3,0.1 --cores 2" and the like
	@exec $(BIN)/python -m benchmarks.jobs $(ARGS)

bench-peers: $(PEERS) ## Measure the pipeline beside Debezium in Kafka Connect; ARGS="--scale 0.05 --inputs A" and the like
	@exec $(BIN)/python -m benchmarks.peers $(ARGS)

memory: $(DEV) $(KERNEL) ## Measure the peak memory of the services on what is largest, in some minutes
	@exec $(BIN)/python -m benchmarks.memory $(ARGS)

local: $(KERNEL) ## Start Kafka, a registry and MySQL here, until Ctrl-C
	@exec $(BIN)/python -m millrace.cli local up --end-with-parent $(ARGS)

generate: $(DEV) $(KERNEL) ## Write all generated files: tables of the documentation, the schema of events, enums
	@$(BIN)/python tools/generate_event_types.py $(ARGS)
	@$(BIN)/python docs/generate.py $(ARGS)

# Pages that are gone must not stay, so all are written again, in some ten seconds.
docs: $(DOCS)/.installed ## Build the documentation as a site, reports/docs/index.html; a broken link is an error
	@rm -rf reports/docs
	@$(DOCS)/bin/python -m sphinx --fail-on-warning --keep-going --fresh-env --conf-dir docs --doctree-dir .make/docs . reports/docs $(ARGS)

# Of Python alone: coverage does not see into the kernel.
coverage: $(DEV) $(KERNEL) ## Run the unit tests and print how much of each module they run
	@$(BIN)/coverage erase
	@$(BIN)/coverage run -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder tests/unit $(ARGS); tests=$$?; \
	$(BIN)/coverage combine --quiet && $(BIN)/coverage report && exit $$tests

kernel: $(READY) ## Build the compiled hot path; else this happens by itself where there is a C compiler
	@$(BIN)/python -m millrace.kernel.build
	@touch $(KERNEL)

spark-package: $(KERNEL) ## Build dist/millrace-spark.zip, which spark-submit --py-files carries to the workers
	@$(BIN)/python tools/spark_package.py dist/millrace-spark.zip

pins: ## Write requirements.txt, requirements-dev.txt and docs/requirements.txt again, with the newest packages that pyproject.toml allows
	@$(PYTHON) -m venv --clear .make/pins
	@.make/pins/bin/pip install --progress-bar off hatchling editables '.[spark,local,kernel]' \
	    pyspark==$$($(PYTHON) -c 'import tomllib; print(tomllib.load(open("millrace/local/artifacts.toml", "rb"))["spark"]["version"])')
	@.make/pins/bin/pip freeze --exclude millrace-cdc > .make/run.txt
	@.make/pins/bin/pip install --progress-bar off --constraint .make/run.txt '.[dev]'
	@{ printf '%s\n' "$$PINS_HEAD"; cat .make/run.txt; } > requirements.txt
	@{ printf '%s\n' "$$DEV_PINS_HEAD"; .make/pins/bin/pip freeze --exclude millrace-cdc | grep -vxF -f .make/run.txt; } > requirements-dev.txt
	@$(PYTHON) -m venv --clear .make/pins
	@.make/pins/bin/pip install --progress-bar off $$($(PYTHON) -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["dependency-groups"]["docs"])')
	@{ printf '%s\n' "$$DOCS_PINS_HEAD"; .make/pins/bin/pip freeze; } > docs/requirements.txt

clean: ## Remove the environment, reports and caches of this folder (downloads stay: see MILLRACE_CACHE)
	rm -rf $(VENV) .make build dist reports .pytest_cache .mypy_cache .ruff_cache .hypothesis
	rm -f millrace/kernel/*.so millrace/kernel/*.so.sha256

# Installed again whenever the pins change. The project itself is installed in place, without looking for packages.
$(READY): requirements.txt pyproject.toml tools/install.py
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("error: Millrace needs Python 3.11 or newer, and $(PYTHON) is " + sys.version.split()[0] + "; name another one: make PYTHON=/path/to/python3.11")'
	@$(PYTHON) -m venv $(VENV) || { echo "error: $(PYTHON) cannot make a virtual environment; on Debian and Ubuntu install python3-venv" >&2; exit 1; }
	@$(BIN)/python tools/install.py requirements.txt
	@$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

# What only tests and checks need; the demo does without.
$(DEV): $(READY) requirements-dev.txt
	@$(BIN)/python tools/install.py requirements-dev.txt
	@touch $@

# Without a C compiler this says so, and the reference codec does the work.
$(KERNEL): $(READY) $(wildcard millrace/kernel/*.pyx millrace/kernel/*.pxd millrace/kernel/build.py)
	@$(BIN)/python -m millrace.kernel.build --if-possible
	@touch $@

$(PEERS): $(KERNEL) benchmarks/peers/requirements.txt
	@$(BIN)/python -m pip install --quiet --no-deps --require-hashes --requirement benchmarks/peers/requirements.txt
	@touch $@

$(LANGUAGES): $(DEV) $(KERNEL) tests/languages/requirements.txt
	@$(BIN)/python -m pip install --quiet --no-deps --require-hashes --requirement tests/languages/requirements.txt
	@touch $@

# In the cache, where all working copies share it. What is in it is run, so it must be our own.
$(DOCS)/.installed: docs/requirements.txt
	@umask 022; mkdir -p $(DOCS) && [ -O $(DOCS) ] || { echo "error: $(DOCS) is not ours; set MILLRACE_CACHE to a folder of your own" >&2; exit 1; }
	@umask 022; $(PYTHON) -m venv --clear $(DOCS) && $(DOCS)/bin/python tools/install.py docs/requirements.txt
	@touch $@
