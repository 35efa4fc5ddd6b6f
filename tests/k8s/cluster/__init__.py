"""A Kubernetes cluster on this machine, for tests: see README.md.

kubernetes_cluster  KubernetesCluster: control plane, nodes, fault injection
control_plane       ControlPlane and ClusterSettings: start, stop, accessors for tests
objects             kinds of objects, and what all manifests share
pod                 Pod: typed view of a pod's manifest
api/                API server: HTTP, object store, patches, selectors, validation
controllers/        controllers of Kubernetes itself, and the scheduler
operators/          JobSet, Kubeflow Trainer, Volcano, Kueue
nodes/              kubelets, containers, pod network
harness/            runs, scenes, manifests and clients for tests
podman/             pods as real containers
"""
