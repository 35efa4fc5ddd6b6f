"""From a job spec and options to the objects that are submitted; needs no cluster.

validators          syntax of Kubernetes: names, labels, images, tolerations, NAME=VALUE
quantities          memory amounts: 64Gi, and --mem as Slurm reads it
pod_patch           --pod-patch: the strategic merge
pod_patch_file      its file: reading and checks
option_values       forms of --run-volume, --resource, --secret-ref, --ttl
kubernetes_options  the options of the launcher
names               names and labels of the objects
pod_paths           paths in the pods, DNS name of pod 0
node_resources      cores, memory, /dev/shm, disk, GPUs of a node
plan_check          checks of job and options together
app                 the TorchX AppDef
container, pod      the agent's container and the pod template of every kind
support_objects     ConfigMap, Service, NetworkPolicy
indexed_job, jobset, volcano, trainjob   the job object of each --kind
object_size         whether etcd can keep an object
render              all manifests of a job; YAML
summary             the summary line and notes of a plan
"""
