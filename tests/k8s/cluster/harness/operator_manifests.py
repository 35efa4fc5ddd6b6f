"""Small JobSets, TrainJobs and vcjobs for tests of the emulated operators."""

from __future__ import annotations

import copy

from cluster.harness.manifests import POLICY, container, job
from cluster.objects import Manifest
from cluster.operators.trainjobs import STEP


def job_set(name: str = "train", jobs: int = 1, max_restarts: int = 1, **spec: object) -> Manifest:
    """A JobSet of `jobs` Jobs of two pods, each failing with its first pod."""
    template = job("any", policy=POLICY, backoff_limit=0)["spec"]
    policy = {
        "maxRestarts": max_restarts,
        "restartStrategy": "BlockingRecreate",
        "rules": [{"name": "fatal", "action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]}],
    }
    replicated = {"name": "node", "replicas": jobs, "template": {"spec": template}}
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": name},
        "spec": {"failurePolicy": policy, "replicatedJobs": [replicated], **spec},
    }


def runtime(name: str = "ours", **policy: object) -> Manifest:
    """A TrainingRuntime with one Job, the trainer."""
    spec = copy.deepcopy(job_set()["spec"])
    [replicated] = spec["replicatedJobs"]
    replicated["template"]["metadata"] = {"labels": {STEP: "trainer"}}
    [agent] = replicated["template"]["spec"]["template"]["spec"]["containers"]
    agent |= {"name": "node", "env": [{"name": "KEPT", "value": "1"}, {"name": "SET", "value": "runtime"}]}
    agent["resources"] = {"limits": {"cpu": "1", "memory": "1Gi"}}
    del replicated["template"]["spec"]["podFailurePolicy"]  # its rules name no container
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainingRuntime",
        "metadata": {"name": name},
        "spec": {
            "mlPolicy": {"numNodes": 2, **policy},
            "template": {"metadata": {"labels": {"team": "a"}}, "spec": spec},
        },
    }


def train_job(name: str = "train", runtime: str = "ours", **spec: object) -> Manifest:
    """A TrainJob that by default overrides nothing of the runtime."""
    ref = {"apiGroup": "trainer.kubeflow.org", "kind": "TrainingRuntime", "name": runtime}
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": name},
        "spec": {"runtimeRef": ref, **spec},
    }


def vcjob(name: str = "train", tasks: int = 2, max_retry: int = 2, **spec: object) -> Manifest:
    """A vcjob with a one-pod task per node; restarted as a whole, except after exit code 78."""
    pod = {"containers": [container("true")], "restartPolicy": "Never"}
    return {
        "apiVersion": "batch.volcano.sh/v1alpha1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {
            "minAvailable": tasks,
            "maxRetry": max_retry,
            "schedulerName": "volcano",
            "queue": "default",
            "plugins": {"svc": ["--publish-not-ready-addresses"], "env": []},
            "policies": [
                {"exitCode": 78, "action": "TerminateJob"},
                {"event": "PodEvicted", "action": "RestartJob"},
                {"event": "PodFailed", "action": "RestartJob"},
            ],
            "tasks": [
                {"name": f"node-{number}", "replicas": 1, "template": {"spec": copy.deepcopy(pod)}}
                for number in range(tasks)
            ],
            **spec,
        },
    }
