"""Nodes: pods run as processes in Linux namespaces.

kubelet          Kubelet: all nodes' kubelets in one thread
pod_worker       PodWorker: one pod from sandbox to termination
container_state  state of a container and its containerStatuses entry
container_spec   manifest to process: arguments, environment, mounts, user
sandbox          namespaces of a pod and processes of its containers
container_init   program that starts a container's command in its namespaces
image            the one image: programs of this machine and a workspace
network          bridge, veth pairs, hosts files
manual_kubelet   ManualKubelet: tests set the status of pods; no process runs
"""
