# make demo: see it run.  make test: see it proved.  Both make .venv by themselves (PYTHON=python3.12 chooses another).
PYTHON ?= python3
VENV   ?= .venv

BIN     := $(VENV)/bin
DEMO    := launch examples/digits.yaml --nodes 2 --gpus-per-node 2 --device cpu

.DEFAULT_GOAL := help
.PHONY: help demo test test-fast lint proof soak bench slurm-dev k8s-dev constraints clean venv venv-dev

help:
	@echo 'make demo         install what running needs, train the digits as 2 nodes x 2 processes'
	@echo 'make test         ruff, mypy and every test; prints the seconds of each group'
	@echo 'make test-fast    unit and architecture tests without those of several processes (under a minute)'
	@echo 'make lint         ruff and mypy'
	@echo 'make proof        the longer proofs (pytest -m proof), some 30 minutes; CI runs them too'
	@echo 'make soak         the longest: 80 kills, 50 launches; some 15 minutes'
	@echo 'make bench        the benchmarks; they print, they assert nothing'
	@echo 'make slurm-dev    a Slurm cluster of 4 nodes on this machine (NODES=8: of 8), until Ctrl-C; needs slurmctld slurmd munge'
	@echo 'make k8s-dev      a pretended Kubernetes cluster on this machine whose pods are real processes, until Ctrl-C; needs root'
	@echo 'make constraints  write constraints.txt anew from the newest releases'
	@echo 'make clean        remove .venv, caches and build folders; runs/ stays'
	@echo 'PYTHON=python3.12 chooses the interpreter (3.11 or newer), VENV=DIR another place than .venv'

demo: venv
	@$(BIN)/dist-train $(DEMO)

test: venv-dev
	@$(BIN)/python .ci/test.py

test-fast: venv-dev
	@$(BIN)/python .ci/test.py --fast

lint: venv-dev
	@$(BIN)/python .ci/test.py --lint

proof: venv-dev
	@$(BIN)/python .ci/test.py --proof

soak: venv-dev
	@$(BIN)/python .ci/test.py --soak

bench: venv-dev
	@for script in benchmarks/*.py; do echo "== $$script"; $(BIN)/python "$$script" || exit 1; done

slurm-dev: venv-dev
	@exec $(BIN)/python tests/slurm/slurm_dev.py --nodes $(or $(NODES),4)

k8s-dev: venv-dev
	@exec $(BIN)/python tests/k8s/k8s_dev.py --nodes $(or $(NODES),2)

constraints:
	@"$(PYTHON)" .ci/constraints.py

clean:
	rm -rf "$(VENV)" build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find dist_train launchers tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

venv:
	@.ci/venv.sh "$(PYTHON)" "$(VENV)" run

venv-dev:
	@.ci/venv.sh "$(PYTHON)" "$(VENV)" dev
