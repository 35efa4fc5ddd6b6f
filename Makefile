# make demo: run an example.  make test: run all checks and tests.  Both create .venv (PYTHON=python3.12 chooses another).
PYTHON ?= python3
VENV   ?= .venv

BIN     := $(VENV)/bin
DEMO    := launch examples/digits.yaml --nodes 2 --gpus-per-node 2 --device cpu

.DEFAULT_GOAL := help
.PHONY: help demo test test-fast test-gpu lint proof soak bench docs slurm-dev test-slurm-site test-cluster k8s-dev constraints clean venv venv-dev venv-docs

help:
	@echo 'make demo         install the dependencies, train the digits as 2 nodes x 2 processes'
	@echo 'make test         ruff, mypy and every test; prints the seconds of each group'
	@echo 'make test-fast    unit and architecture tests that start no further processes (under a minute)'
	@echo 'make test-gpu     environment, tests and loop benchmark on GPUs, into build/gpu-report.json; fails without one'
	@echo 'make test-cluster KUBECONFIG=... NAMESPACE=... IMAGE=...   the life cycle on your Kubernetes (CONTRIBUTING.md)'
	@echo 'make lint         ruff and mypy'
	@echo 'make proof        the longer tests (pytest -m proof), some 30 minutes; CI runs them too'
	@echo 'make soak         the soak tests: 80 kills, 600 launches, 300 rounds of a hang of torch; some 90 minutes'
	@echo 'make bench [ONLY="NAME…" ROUNDS=N]   the benchmarks; they print, write docs/benchmarks.md, and assert nothing'
	@echo 'make docs         the documentation as a site in build/docs; a broken link fails it'
	@echo 'make slurm-dev    a Slurm cluster of 4 nodes on this machine (NODES=8: of 8), until Ctrl-C; needs slurmctld slurmd munge'
	@echo 'make test-slurm-site PARTITION=P [ACCOUNT=A FOLDER=DIR ARGS="…" QUEUE_S=1800]: the life of a job on your Slurm cluster'
	@echo 'make k8s-dev      an emulated Kubernetes cluster on this machine whose pods are real processes, until Ctrl-C; needs root'
	@echo 'make constraints  rewrite constraints.txt with the newest releases'
	@echo 'make clean        remove .venv, caches and build folders; runs/ stays'
	@echo 'PYTHON=python3.12 chooses the interpreter (3.11 or newer), VENV=DIR another folder than .venv'

demo: venv
	@$(BIN)/dist-train $(DEMO)

test: venv-dev
	@$(BIN)/python .ci/test.py

test-fast: venv-dev
	@$(BIN)/python .ci/test.py --fast

test-gpu: venv-dev
	@$(BIN)/python .ci/test.py --gpu

test-cluster: venv-dev
	@exec $(BIN)/python tests/site_cluster/run_on_cluster.py

lint: venv-dev
	@$(BIN)/python .ci/test.py --lint

proof: venv-dev
	@$(BIN)/python .ci/test.py --proof

soak: venv-dev
	@$(BIN)/python .ci/test.py --soak

bench: venv-dev
	@$(BIN)/python benchmarks/table.py $(if $(ONLY),--only $(ONLY)) $(if $(ROUNDS),--rounds $(ROUNDS))

docs: venv-docs
	@$(BIN)/python docs/reference_pages/guarantees.py
	@$(BIN)/python -m sphinx -q -W --keep-going -b html -d build/docs/.doctrees docs build/docs
	@echo 'build/docs/index.html'

slurm-dev: venv-dev
	@exec $(BIN)/python tests/slurm/slurm_dev.py --nodes $(or $(NODES),4)

test-slurm-site: venv-dev
	@exec $(BIN)/python .ci/slurm_site.py --partition "$(PARTITION)" --account "$(ACCOUNT)" --arguments="$(ARGS)" \
		$(if $(FOLDER),--folder "$(FOLDER)") $(if $(QUEUE_S),--queue-s "$(QUEUE_S)")

k8s-dev: venv-dev
	@PYTHONPATH=tests/k8s exec $(BIN)/python -m cluster --nodes $(or $(NODES),2)

constraints:
	@"$(PYTHON)" .ci/constraints.py

clean:
	rm -rf "$(VENV)" build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find dist_train launchers tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

venv:
	@.ci/venv.sh "$(PYTHON)" "$(VENV)" run

venv-dev:
	@.ci/venv.sh "$(PYTHON)" "$(VENV)" dev

venv-docs:
	@.ci/venv.sh "$(PYTHON)" "$(VENV)" docs
