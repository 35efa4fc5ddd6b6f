"""Options of the Kubernetes launcher as --help shows them; kubernetes_options has their values."""

from __future__ import annotations

from dist_train.jobs.launcher import OptionRow

OPTION_ROWS: dict[str, OptionRow] = {
    "image": OptionRow("Image with dist-train, torch and your code; a digest is safest.", metavar="IMAGE"),
    "kind": OptionRow(
        "job needs nothing installed; the others need JobSet, Volcano or Kubeflow Trainer.  [default: job]",
        metavar="job|jobset|volcano|trainjob",
    ),
    "namespace": OptionRow("Namespace.  [default: default]", metavar="NS"),
    "context": OptionRow("Context of the kubeconfig.  [default: its current one]", metavar="NAME"),
    "queue": OptionRow("Kueue's local queue; with volcano, its queue.", metavar="QUEUE"),
    "run_volume": OptionRow(
        "Where runs are kept, mounted at /runs: pvc/NAME[:FOLDER] or emptydir.", metavar="VOLUME"
    ),
    "pod_patch": OptionRow("YAML merged into the pod template last (metadata:, spec:).", metavar="FILE"),
    "python": OptionRow("Python in the image.  [default: python]", metavar="PYTHON"),
    "workdir": OptionRow(
        "Where the current directory's code is in the image or on a volume.  [default: /workspace]",
        metavar="DIR",
    ),
    "service_account": OptionRow("Service account of the pods.", metavar="NAME"),
    "priority_class": OptionRow("Priority class of the pods.", metavar="NAME"),
    "image_pull_secret": OptionRow("Secret for pulling the image.", metavar="NAME"),
    "resource": OptionRow(
        "Any other resource: rdma/ib=1. ephemeral-storage=50Gi, or none, which is the default with Kueue's "
        "--queue.  (repeatable)",
        metavar="NAME=N",
    ),
    "gpu_resource": OptionRow(
        "What a GPU is called in the cluster: amd.com/gpu, or a MIG profile such as nvidia.com/mig-1g.5gb.  "
        "[default: nvidia.com/gpu]",
        metavar="NAME",
    ),
    "node_selector": OptionRow("Label that the nodes must have.  (repeatable)", metavar="K=V"),
    "toleration": OptionRow("Taint to tolerate.  (repeatable)", metavar="KEY[=V][:EFFECT]"),
    "annotation": OptionRow("Annotation of the pods.  (repeatable)", metavar="K=V"),
    "secret_ref": OptionRow(
        "A variable from a key of a Secret in the namespace. --secret HF_TOKEN alone means "
        "HF_TOKEN=hf-token/HF_TOKEN.  (repeatable)",
        metavar="NAME=SECRET/KEY",
    ),
    "shm": OptionRow(
        "Size of /dev/shm, a part of --mem.  [default: a quarter of --mem, at most 8Gi]", metavar="16Gi"
    ),
    "run_as_user": OptionRow(
        "User id of the pods.  [default: the image's, which must be numeric]", metavar="UID"
    ),
    "fs_group": OptionRow("Group that may write the volumes.  [default: none is set]", metavar="GID"),
    "rdma": OptionRow(
        "Add what RDMA needs and the restricted level forbids (IPC_LOCK).  [default: no]", metavar="yes|no"
    ),
    "network_policy": OptionRow(
        "Let the pods talk to each other and to DNS alone.  [default: no]", metavar="yes|no"
    ),
    "ttl": OptionRow(
        "When the ended job is removed from the cluster: 30m, 12h, 7d or never.  [default: 7d]",
        metavar="TIME",
    ),
}
