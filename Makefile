# For GNU Make 3.81 (the one that macOS ships) and newer.
.DEFAULT_GOAL := help
.PHONY: help demo test slow shares fuzz soak ranks lint format bench bench-screen bench-mailboxes pictures clean

BIN := .venv/bin
# Both kinds of learner: PyTorch and MLX train in one run.
RUN_EXTRAS := torch mlx
INSTALL_FROM := pyproject.toml .ci/constraints.txt .ci/venv
PYTEST_ARGS ?=

help:
	@echo 'make demo    two learners, one in PyTorch and one in MLX, train one model in front of you'
	@echo 'make test    the tests that take seconds'
	@echo 'make slow    the tests that take minutes'
	@echo 'make shares  the tests on real shares, SMB and NFS: on Linux, in a user-mode Linux guest each; 5 minutes'
	@echo 'make fuzz    100,000 damaged files, one after the other, for whatever reads them; a part of make slow'
	@echo 'make soak    four learners over shares that fail in every way, for an hour; MINUTES=10 SEED=7 for less, and again'
	@echo 'make ranks   the tests of fine-tuning, which need MLX-LM and what it brings along'
	@echo 'make lint    ruff, mypy and the import contracts'
	@echo 'make format  lay out the code the way lint wants it'
	@echo 'make bench   how long the command takes to start, and what an exchange costs here'
	@echo 'make bench-screen   what the screen costs: CPU, first paint, keys, memory, a long history; 10 minutes'
	@echo 'make bench-mailboxes LOCATION=…   how fast a folder, a share or a bucket is beside a plain client, and what a round asks of it'
	@echo 'make pictures  the pictures of the screens in the README, of real runs: on Linux, as root, with tmux'
	@echo 'make clean   remove .venv and everything else that was made here'
	@echo
	@echo 'Everything is installed into .venv, nothing outside this folder. PYTHON=python3.12 picks an interpreter.'

demo: .venv/.run-stamp
	@$(BIN)/swarm demo

test: .venv/.dev-stamp
	@.ci/tests $(PYTEST_ARGS)

slow: .venv/.dev-stamp
	@$(BIN)/python -m pytest -m slow $(PYTEST_ARGS)
	@$(BIN)/python -m pytest -n 2 --dist worksteal -m 'hypothesis and not process and not slow and not share' --hypothesis-profile default

shares: .venv/.dev-stamp
	@$(BIN)/python tests/shares/run.py $(KINDS) -- $(PYTEST_ARGS)

fuzz: .venv/.dev-stamp
	@$(BIN)/python -m pytest -m slow tests/fuzz $(PYTEST_ARGS)

soak: .venv/.dev-stamp
	@$(BIN)/python -m tests.soak --minutes $(or $(MINUTES),60) $(if $(SEED),--seed $(SEED))

ranks: .venv/.ranks-stamp
	@$(BIN)/python -m pytest -n 2 --dist worksteal -m 'not slow' tests/unit/test_finetune.py tests/unit/test_batches_of_rows.py \
		tests/unit/test_rank_watchdog.py tests/integration/test_finetune_step.py tests/integration/test_finetune_train.py \
		tests/integration/test_lora.py tests/contract/tasks/test_lora.py tests/process/test_ranks.py \
		tests/process/test_lora.py tests/process/test_finetune_jobs.py tests/process/test_finetune_people.py \
		tests/integration/test_model_files.py tests/integration/test_planning.py $(PYTEST_ARGS)

lint: .venv/.dev-stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

format: .venv/.dev-stamp
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: .venv/.run-stamp
	@$(BIN)/python tests/bench/startup.py
	@$(BIN)/swarm bench

bench-screen: .venv/.run-stamp
	@$(BIN)/python -m tests.bench.screen

bench-mailboxes: .venv/.dev-stamp
	@$(BIN)/python -m tests.bench.mailboxes $(LOCATION)
	@$(BIN)/python -m tests.bench.operations

pictures: .venv/.dev-stamp
	@$(BIN)/python tests/process/pictures.py

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache snapshot_report.html
	find swarm tui tests -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/.run-stamp: $(INSTALL_FROM)
	@.ci/venv $(RUN_EXTRAS)
	@touch $@

.venv/.ranks-stamp: .venv/.dev-stamp
	@.ci/venv mlx-lm
	@touch $@

.venv/.dev-stamp: $(INSTALL_FROM)
	@.ci/venv $(RUN_EXTRAS) dev
	@touch .venv/.run-stamp $@
