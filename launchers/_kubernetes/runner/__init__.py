"""TorchX: its Runner, our schedulers, and what these do on the cluster.

attempt_pods       which pod of a node has run an attempt
pod_logs           the output of a node's pods, read once or followed
rank_restarts      how often the ranks were started again, by an agent's lines in its pod's log
recent_answer      one answer of the API server for several threads
removal            delete everything of a run
preflight          checks of queue and run volume before anything is created
object_submission  create the objects of a plan, replacing a finished start of the same run
scheduler          the TorchX scheduler for Job, JobSet and TrainJob
volcano_scheduler  the one for Volcano, over TorchX's own
volume_command     a short command beside a job, in a pod with the same run volume
torchx_session     one job through TorchX's Runner: submit, status, logs, cancel
"""
