# Each target does all its own set-up. Needed: a Python of 3.11 or newer with its venv module, git
# and make.
#
#   make test                        the test suite
#   make test DJANGO='Django~=5.2.0' the same with a Django of one's choice
#   make test PYTHON=/path/to/python3.13 VENV=.venv313   the same on another Python
#   make demo                        the example project's demonstration, under a minute
#   make lint                        ruff, mypy, missing migrations
#   make torture                     processes killed under load, the books checked; about 2 minutes
#   make torture SECONDS=300         the same for longer; ARGS='--seed 7' repeats one by its seed
#   make crash                       every disk that a power cut may leave, opened and checked
#   make schedules                   two and three processes in every order; about 8 minutes
#   make bench                       what the disk backend does per second, beside its floor
#   make clean                       remove what these targets made

VENV ?= .venv
DJANGO ?= Django
ARGS ?=
SECONDS ?= 80

# The first of these that is new enough and can make virtual environments.
PYTHON ?= $(shell for name in python3 python3.14 python3.13 python3.12 python3.11 \
	"$${PYENV_ROOT:-$$HOME/.pyenv}"/versions/3.1[1-9]*/bin/python3; do \
	"$$name" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' \
	>/dev/null 2>&1 && echo "$$name" && break; done)

PIP = $(VENV)/bin/python -m pip --disable-pip-version-check
# The stamp's name holds what was asked for, so that another Django is another installation.
STAMP = $(VENV)/.installed-$(shell printf '%s' '$(DJANGO)' | cksum | cut -d' ' -f1)

.PHONY: test demo lint torture crash schedules bench clean venv
.DEFAULT_GOAL := test

test: $(STAMP)
	$(VENV)/bin/python -m pytest $(ARGS)

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

bench: $(STAMP)
	$(VENV)/bin/python -m benchmarks.store $(ARGS)

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
