"""--pod-patch: Kubernetes' strategic merge, as far as a pod template needs it."""

from __future__ import annotations

from copy import deepcopy

from launchers._kubernetes.manifest.pod_patch import merge

BASE = {
    "metadata": {"annotations": {"a": "1", "b": "2"}},
    "spec": {
        "priority": 1,
        "tolerations": [{"key": "gpu"}],
        "containers": [
            {
                "name": "node",
                "command": ["python", "-m", "x"],
                "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}],
                "volumeMounts": [{"name": "runs", "mountPath": "/runs"}],
                "ports": [{"name": "rdzv", "containerPort": 29400}],
            }
        ],
        "volumes": [{"name": "runs", "persistentVolumeClaim": {"claimName": "runs"}}],
    },
}


def merged_spec(patch: object) -> dict[str, object]:
    found = merge(BASE, {"spec": patch})["spec"]
    assert isinstance(found, dict)
    return found


def merged_container(**patch: object) -> dict[str, object]:
    [found] = merged_spec({"containers": [{"name": "node", **patch}]})["containers"]  # type: ignore[attr-defined]
    assert isinstance(found, dict)
    return found


def test_dicts_merge_and_null_removes() -> None:
    found = merge(BASE, {"metadata": {"annotations": {"b": None, "c": "3"}, "labels": {"x": "y"}}})
    assert found["metadata"] == {"annotations": {"a": "1", "c": "3"}, "labels": {"x": "y"}}
    assert found["spec"] == BASE["spec"]


def test_neither_side_is_changed() -> None:
    base, patch = deepcopy(BASE), {"spec": {"containers": [{"name": "node", "env": [{"name": "C"}]}]}}
    before = deepcopy(patch)
    merge(base, patch)
    assert (base, patch) == (BASE, before)


def test_plain_values_and_other_lists_are_replaced() -> None:
    assert merged_spec({"priority": 2})["priority"] == 2
    assert merged_spec({"tolerations": [{"key": "mine"}]})["tolerations"] == [{"key": "mine"}]
    assert merged_container(command=["sleep", "1"])["command"] == ["sleep", "1"]


def test_variables_merge_by_name() -> None:
    found = merged_container(env=[{"name": "B", "value": "9"}, {"name": "C", "value": "3"}])["env"]
    assert found == [
        {"name": "A", "value": "1"},
        {"name": "B", "value": "9"},
        {"name": "C", "value": "3"},
    ]


def test_mounts_merge_by_path_and_ports_by_number() -> None:
    found = merged_container(
        volumeMounts=[{"mountPath": "/runs", "subPath": "me"}, {"mountPath": "/data", "name": "data"}],
        ports=[{"containerPort": 29400, "hostPort": 1}],
    )
    assert found["volumeMounts"] == [
        {"name": "runs", "mountPath": "/runs", "subPath": "me"},
        {"mountPath": "/data", "name": "data"},
    ]
    assert found["ports"] == [{"name": "rdzv", "containerPort": 29400, "hostPort": 1}]


def test_a_new_container_is_added_to_the_agents() -> None:
    found = merged_spec({"containers": [{"name": "sidecar", "image": "x"}]})["containers"]
    assert isinstance(found, list)
    assert [container["name"] for container in found] == ["node", "sidecar"]


def test_an_item_is_removed_or_replaced() -> None:
    env = [{"name": "A", "$patch": "delete"}, {"name": "Z", "$patch": "delete"}]
    assert merged_container(env=env)["env"] == [{"name": "B", "value": "2"}]
    whole = {"name": "runs", "$patch": "replace", "nfs": {"server": "s", "path": "/p"}}
    assert merged_spec({"volumes": [whole]})["volumes"] == [
        {"name": "runs", "nfs": {"server": "s", "path": "/p"}}
    ]


def test_a_dict_is_replaced() -> None:
    found = merge(BASE, {"metadata": {"annotations": {"$patch": "replace", "x": "y"}}})
    assert found["metadata"] == {"annotations": {"x": "y"}}


def test_nulls_of_a_new_item_are_not_kept() -> None:
    found = merged_spec({"containers": [{"name": "new", "image": "x", "env": None}], "hostAliases": None})
    assert found["containers"][1] == {"name": "new", "image": "x"}  # type: ignore[index]
    assert "hostAliases" not in found
