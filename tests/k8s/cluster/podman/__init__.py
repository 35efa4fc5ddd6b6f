"""Pods of rendered manifests as real containers, by podman and runc.

pods             PodmanPods: run pods of a Job; facts of their processes
engine           Engine: podman in its own namespaces
run_flags        manifest to arguments of `podman run`
manifest_fields  read a manifest field by field, refusing unread ones
placement        address, files and volumes of a pod
image            build an image without a registry
name_server      DNS server of the pods
"""
