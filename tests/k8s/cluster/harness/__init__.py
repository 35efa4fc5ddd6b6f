"""What the tests use on top of the cluster.

runs                start runs by the command line; read their run directories
scene               Scene: launched job whose pods' status the test sets
job_kinds           JobKind and KindRun: jobs of each --kind
clients             the official client
manifests           small Jobs, pods, Services, ConfigMaps
operator_manifests  small JobSets, TrainJobs, vcjobs
programs            pods that run a small Python program
"""
