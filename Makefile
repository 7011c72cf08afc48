# Each target does all its own set-up. Needed: a Python of 3.11 or newer with its venv module, git
# and make.
#
#   make test                        the test suite, a process for each processor
#   make test JOBS=0                 the same in one process
#   make test DJANGO='Django~=5.2.0' the same with a Django of one's choice
#   make test PYTHON=/path/to/python3.13 VENV=.venv313   the same on another Python
#   make demo                        the example project's demonstration, under a minute
#   make lint                        ruff, mypy, missing migrations
#   make torture                     processes killed under load, the books checked; about 2 minutes
#   make torture SECONDS=300         the same for longer; ARGS='--seed 7' repeats one by its seed
#   make crash                       every disk that a power cut may leave, opened and checked
#   make schedules                   two and three processes in every order; about 12 minutes
#   make fuzz                        a store's files mutated: 100,000 inputs by the seed, then guided
#                                    by coverage where there is an atheris for this Python
#   make endurance                   200 stops under load, a million tasks, a database that goes away,
#                                    idle workers; 15 to 30 minutes. ARGS='stops --rounds 20'
#   make faults                      every call of the disk store fails in every way; 10 minutes
#   make timeouts                    100,000 tasks that end at the moment of their timeout
#   make periodic                    a simulated year of periodic tasks in three time zones
#   make bench                       what the disk backend does per second, beside its floor
#   make bench-size                  what a million tasks cost, dead or pending; minutes
#   make clean                       remove what these targets made

VENV ?= .venv
DJANGO ?= Django
ARGS ?=
JOBS ?= logical
FUZZ_SECONDS ?= 30
SECONDS ?= 80

# The first of these that is new enough and can make virtual environments.
PYTHON ?= $(shell for name in python3 python3.14 python3.13 python3.12 python3.11 \
	"$${PYENV_ROOT:-$$HOME/.pyenv}"/versions/3.1[1-9]*/bin/python3; do \
	"$$name" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' \
	>/dev/null 2>&1 && echo "$$name" && break; done)

PIP = $(VENV)/bin/python -m pip --disable-pip-version-check
# The stamp's name holds what was asked for, so that another Django is another installation.
STAMP = $(VENV)/.installed-$(shell printf '%s' '$(DJANGO)' | cksum | cut -d' ' -f1)
FUZZED = $(VENV)/fuzzed

.PHONY: test demo lint torture crash schedules fuzz faults timeouts periodic endurance bench
.PHONY: bench-size clean venv
.DEFAULT_GOAL := test

test: $(STAMP)
	@# The tests start hundreds of processes; none of them compiles, though Python be told to
	@# write no bytecode when it imports.
	@$(VENV)/bin/python -m compileall -q deferred_django example_project benchmarks tests
	$(VENV)/bin/python -m pytest -n $(JOBS) --maxprocesses 16 --dist worksteal $(ARGS)

demo: $(STAMP)
	$(VENV)/bin/python manage.py demo $(ARGS)

lint: $(STAMP)
	$(VENV)/bin/python -m ruff check .
	$(VENV)/bin/python -m ruff format --check .
	$(VENV)/bin/python -m mypy
	$(VENV)/bin/python manage.py makemigrations --check --dry-run

torture: $(STAMP)
	$(VENV)/bin/python -m tests.torture.kills --seconds $(SECONDS) $(ARGS)
	$(VENV)/bin/python -m tests.torture.handover --tries 5

crash: $(STAMP)
	$(VENV)/bin/python -m tests.crash $(ARGS)

schedules: $(STAMP)
	$(VENV)/bin/python -m tests.schedules $(ARGS)

fuzz: $(STAMP)
	$(VENV)/bin/python -m tests.fuzz $(ARGS)
	@mkdir -p $(FUZZED)/log $(FUZZED)/dead $(FUZZED)/context
	@$(PIP) install --quiet --only-binary atheris --editable '.[fuzz]' '$(DJANGO)' || \
		{ echo "Not guided by coverage: no atheris for this Python." >&2; exit 0; }; \
	set -ex; \
	limits="-max_total_time=$(FUZZ_SECONDS) -max_len=3000 -timeout=20 -rss_limit_mb=1024"; \
	limits="$$limits -artifact_prefix=$(FUZZED)/ -verbosity=0 -print_final_stats=1"; \
	store="$(VENV)/bin/python -m tests.fuzz.atheris_store"; \
	$$store $(FUZZED)/log tests/fuzz/corpus/log $$limits; \
	$$store --dead $(FUZZED)/dead tests/fuzz/corpus/dead $$limits; \
	$(VENV)/bin/python -m tests.fuzz.atheris_contexts \
		$(FUZZED)/context tests/fuzz/corpus/context $$limits

faults: $(STAMP)
	$(VENV)/bin/python -m tests.faults $(ARGS)
	$(VENV)/bin/python -m tests.faults.workers

timeouts: $(STAMP)
	$(VENV)/bin/python -m tests.torture.timeouts $(ARGS)

periodic: $(STAMP)
	$(VENV)/bin/python -m tests.periodic $(ARGS)

endurance: $(STAMP)
	$(VENV)/bin/python -m tests.endurance $(ARGS)

bench: $(STAMP)
	$(VENV)/bin/python -m benchmarks.store $(ARGS)

bench-size: $(STAMP)
	$(VENV)/bin/python -m benchmarks.size_dead $(ARGS)
	$(VENV)/bin/python -m benchmarks.size_pending

venv: $(STAMP)

$(STAMP): pyproject.toml Makefile
	@test -n "$(PYTHON)" || { \
		echo "No Python of 3.11 or newer with its venv module was found." >&2; \
		echo "Install one (on Debian: apt install python3 python3-venv)," >&2; \
		echo "or name it: make $(MAKECMDGOALS) PYTHON=/path/to/python3" >&2; exit 1; }
	@# An environment whose Python is gone or too old is made anew.
	@$(VENV)/bin/python -c 'import pip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
		|| $(PYTHON) -m venv --clear $(VENV)
	$(PIP) install --quiet --editable '.[dev]' '$(DJANGO)'
	@rm -f $(VENV)/.installed-*
	@touch $@

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
