"""The state of a job: what is read from the cluster, its meaning as a JobState, what the run directory keeps.

verdict         the termination message of an agent: exit code, reason, failure
pods            a pod from its status; which pods are the newest of their nodes
pod_reasons     why a pod is in its state, and whether waiting can help
handles         `kubernetes:KIND/NAMESPACE/NAME` and the object that it names
job_object      the Job, JobSet, vcjob or TrainJob from its status
job_snapshot    what one read of the API gives: job object, pods, events, queue conditions
job_result      the state and exit code of a job that has ended
pending_reason  the state of a job that has not: what it waits for
reason_kind     whether two texts of a state say the same
out_of_memory   the memory limit of a pod in which the kernel killed a rank
queue_hints     what to launch instead, where Kueue will never admit the job
job_status      which of the two, and one line per node
pod_watch       changes of the pods by a watch; keeps pods that were deleted
job_record      the files of the run directory on the launching machine
"""
