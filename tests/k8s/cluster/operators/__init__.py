"""Operators that a cluster may install: their controllers and webhooks.

install             register an operator's webhooks and controllers by name
jobsets             JobSet controller
jobset_children     child Jobs of a JobSet
jobset_admission    webhook of JobSets
trainjobs           Kubeflow Trainer: TrainJob to JobSet
trainjob_admission  webhooks of TrainJobs and TrainingRuntimes
volcano_jobs        Volcano's job controller
volcano_pods        pods and svc/env objects of a vcjob
volcano_scheduler   gang scheduler, queues, webhook
kueue               Kueue: suspend and admit jobs of a queue
"""
