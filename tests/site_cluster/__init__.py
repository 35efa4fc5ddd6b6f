"""The life cycle of a run on a cluster that is given: `make test-cluster KUBECONFIG=… NAMESPACE=… IMAGE=…`.

site             what is given, and the command lines for it
site_check       what is missing, before anything is started
site_removal     everything of the session is removed, in the cluster and on its volume
life_cycle       the tests; no test_*.py, so that only the target runs them
run_on_cluster   the target: check, tests, removal
"""
