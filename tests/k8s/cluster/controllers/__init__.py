"""Controllers of Kubernetes itself; each reconciles all objects of its kinds after every change.

manager             run the controllers in one thread
jobs                Job controller
job_pods            pods of a Job: created, selected, counted
pod_failure_policy  spec.podFailurePolicy
garbage_collection  owner references, TTL of finished Jobs, pods of deleted nodes
scheduler           bind pods to nodes
"""
