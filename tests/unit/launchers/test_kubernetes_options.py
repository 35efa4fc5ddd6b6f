"""Options of the Kubernetes launcher: what is refused before anything is rendered, and why."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from launchers._kubernetes.manifest import validators
from launchers._kubernetes.manifest.kubernetes_options import Options


def config_error(**given: object) -> str:
    with pytest.raises(ValidationError) as caught:
        Options(**given)  # type: ignore[arg-type]
    return str(caught.value)


def test_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    options = Options()
    defaults = {
        "kind": "job",
        "gpu_resource": "nvidia.com/gpu",
        "namespace": "default",
        "python": "python",
        "workdir": "/workspace",
        "ttl": "7d",
        "source": str(tmp_path),
    }
    assert {name: value for name, value in options if value} == defaults


@pytest.mark.parametrize(
    "image",
    [
        "dist-train",
        "dist-train:1.0_rc-2",
        "me/dist-train",
        "localhost:5000/dist-train:1",
        "registry.example.com/team/sub/dist__train:v1",
        "REGISTRY.example/x",
        "Registry:5000/x",
        "localhost/x",
        "[fd00::1]:5000/x",
        "x@sha256:" + "0f" * 32,
        "r.example:5000/x:1@sha256:" + "0f" * 32,
    ],
)
def test_images(image: str) -> None:
    assert Options(image=image).image == image


@pytest.mark.parametrize(
    ("image", "why"),
    [
        ("Me/x:1", "has capitals; the names of images are lower case"),
        ("me/Dist-Train:1", "has capitals; the names of images are lower case"),
        ("docker://me/x:1", "has a scheme"),
        ("https://registry/x", "has a scheme"),
        ("x:", "is no image"),
        ("x y", "is no image"),
        ("/x", "is no image"),
        ("x@sha256:12", "is no image"),
        ("", "at least 1 character"),
    ],
)
def test_invalid_images(image: str, why: str) -> None:
    assert why in config_error(image=image)


@pytest.mark.parametrize(
    ("image", "pinned"),
    [("x", False), ("x:latest", False), ("r:5000/x", False), ("x:1", True), ("x@sha256:" + "0f" * 32, True)],
)
def test_which_images_can_change_under_a_job(image: str, pinned: bool) -> None:
    assert validators.is_pinned(image) == pinned


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("namespace", "My-NS"),
        ("namespace", "a.b"),
        ("namespace", "a" * 64),
        ("queue", "q_1"),
        ("service_account", "-x"),
        ("priority_class", "High"),
        ("image_pull_secret", "a..b"),
    ],
)
def test_invalid_names(name: str, value: str) -> None:
    found = config_error(**{name: value})
    assert name in found
    assert f"{value!r} is no name in Kubernetes" in found


@pytest.mark.parametrize(
    ("volume", "claim"),
    [
        ("pvc/runs", ("runs", None)),
        ("pvc/team.runs:you/digits", ("team.runs", "you/digits")),
        ("emptydir", None),
        (None, None),
    ],
)
def test_run_volumes(volume: str | None, claim: tuple[str, str | None] | None) -> None:
    assert Options(run_volume=volume).claim == claim


@pytest.mark.parametrize(
    ("volume", "why"),
    [
        ("runs", "expected pvc/NAME, pvc/NAME:FOLDER or emptydir"),
        ("pvc/", "expected pvc/NAME"),
        ("pvc/a/b", "expected pvc/NAME"),
        ("hostpath:/data", "expected pvc/NAME"),
        ("pvc/Runs", "is no name in Kubernetes"),
        ("pvc/runs:/abs", "must lie in the volume"),
        ("pvc/runs:a/../../b", "must lie in the volume"),
    ],
)
def test_invalid_run_volumes(volume: str, why: str) -> None:
    assert why in config_error(run_volume=volume)


def test_lists_are_name_value_pairs_or_a_mapping_of_the_config() -> None:
    by_words = Options(
        resource=("rdma/ib=1", "ephemeral-storage=50Gi"),
        node_selector=("gpu=a100",),
        annotation=("a.example/on=true",),
    )
    by_mapping = Options(
        resource={"rdma/ib": 1, "ephemeral-storage": "50Gi"},  # type: ignore[arg-type]
        node_selector={"gpu": "a100"},  # type: ignore[arg-type]
        annotation={"a.example/on": True},  # type: ignore[arg-type]
    )
    assert by_words == by_mapping
    assert Options(resource="rdma/ib=1").resource == ("rdma/ib=1",)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"resource": ("cpu=4",)}, "cpu is set by --cpus-per-gpu"),
        ({"resource": ("memory=4Gi",)}, "memory is set by --mem"),
        ({"resource": ("nvidia.com/gpu=4",)}, "nvidia.com/gpu is set by --gpus-per-node"),
        ({"resource": ("rdma/ib",)}, "'rdma/ib' is not of the form NAME=VALUE"),
        ({"resource": ("rdma/ib=many",)}, "expected a count or an amount"),
        ({"resource": ("rdma/ib=-1",)}, "expected a count or an amount"),
        ({"resource": ("rdma/ib=1.5",)}, "devices come in whole numbers"),
        ({"resource": ("rdma/ib=none",)}, "only ephemeral-storage can be none"),
        ({"resource": ("a b=1",)}, "is not of the form name or domain/name"),
        ({"resource": ("rdma/ib=1", "rdma/ib=2")}, "rdma/ib is given twice: 1 and 2"),
        ({"node_selector": ("gpu",)}, "not of the form NAME=VALUE"),
        ({"node_selector": ("gpu=a b",)}, "is no value of a label"),
        ({"node_selector": ("a/b/c=x",)}, "is not of the form name or domain/name"),
        ({"annotation": ("a b=c",)}, "is not of the form name or domain/name"),
        ({"toleration": ("gpu:Never",)}, "effects are NoSchedule, PreferNoSchedule and NoExecute"),
        ({"toleration": ("=x",)}, "not of the form KEY[=VALUE][:EFFECT]"),
        ({"toleration": ("a b",)}, "is not of the form name or domain/name"),
    ],
)
def test_invalid_lists(given: dict[str, tuple[str, ...]], why: str) -> None:
    assert why in config_error(**given)


@pytest.mark.parametrize(
    ("word", "made"),
    [
        ("gpu", {"key": "gpu", "operator": "Exists"}),
        ("a.example/gpu:NoExecute", {"key": "a.example/gpu", "operator": "Exists", "effect": "NoExecute"}),
        ("team=red", {"key": "team", "operator": "Equal", "value": "red"}),
        (
            "team=:NoSchedule",
            {"key": "team", "operator": "Equal", "value": "", "effect": "NoSchedule"},
        ),
    ],
)
def test_tolerations(word: str, made: dict[str, str]) -> None:
    assert validators.toleration(word) == made


def test_secrets_are_named_and_never_quoted() -> None:
    options = Options(secret_ref=("HF_TOKEN=hub/token", "KEY=a.b/c_d.e"))
    assert options.secret_keys == {"HF_TOKEN": ("hub", "token"), "KEY": ("a.b", "c_d.e")}
    for wrong in ("canary-7f3a", "Hub/token", "hub/", "hub/a b"):
        with pytest.raises(ValidationError) as caught:
            Options(secret_ref=(f"HF_TOKEN={wrong}",))
        [error] = caught.value.errors()
        assert "HF_TOKEN=… is not of the form NAME=SECRET/KEY" in error["msg"]
        assert wrong not in error["msg"], "it may be the secret itself"
    assert "is not the name of an environment variable" in config_error(secret_ref=("1A=hub/token",))


@pytest.mark.parametrize(
    ("ttl", "seconds"), [("45s", 45), ("30m", 1800), ("12h", 43200), ("7d", 604800), ("never", None)]
)
def test_ttl(ttl: str, seconds: int | None) -> None:
    assert Options(ttl=ttl).ttl_s == seconds


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"ttl": "7"}, "expected 45s, 30m, 12h, 7d or never"),
        ({"kind": "pod"}, "'job', 'jobset', 'volcano' or 'trainjob'"),
        ({"workdir": "code"}, "expected an absolute path"),
        ({"shm": "lots"}, "'lots' is not an amount of memory"),
        ({"shm": "500m"}, "is not an amount of memory"),
        ({"shm": "0"}, "/dev/shm needs some memory"),
        ({"run_as_user": -1}, "greater than or equal to 0"),
        ({"fs_group": 2**31}, "less than or equal to"),
        ({"rdma": "perhaps"}, "valid boolean"),
        ({"context": "a\nb"}, "control characters"),
        ({"imgae": "x"}, "Extra inputs are not permitted"),
    ],
)
def test_other_invalid_values(given: dict[str, object], why: str) -> None:
    assert why in config_error(**given)


def test_values_of_the_command_line_are_converted() -> None:
    options = Options(
        rdma="yes",  # type: ignore[arg-type]
        network_policy="no",  # type: ignore[arg-type]
        run_as_user="1000",  # type: ignore[arg-type]
    )
    assert (options.rdma, options.network_policy, options.run_as_user) == (True, False, 1000)


def test_a_resume_finds_them_as_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    patch = tmp_path / "patch.yaml"
    patch.write_text("spec: {hostNetwork: true}\n")
    options = Options(image="x:1", resource=("rdma/ib=1",), pod_patch=str(patch), run_volume="pvc/runs")  # type: ignore[arg-type]
    patch.unlink()
    record = json.loads(json.dumps(options.model_dump(mode="json")))
    monkeypatch.chdir("/")
    assert Options(**record) == options
    assert options.pod_patch == {"spec": {"hostNetwork": True}}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[1]", "is not a mapping with metadata: and spec:"),
        ("containers: []", "'containers' is a top-level key of the pod patch"),
        ("spec: {a: [", "is no YAML"),
        ("spec: {containers: [{image: x}]}", "an item of spec.containers in the pod patch has no name"),
        ("spec: {volumes: [x]}", "an item of spec.volumes in the pod patch has no name"),
        ("spec: {containers: [{name: node, ports: [{name: x}]}]}", "has no containerPort"),
        ("spec: {x: 2026-01-01}", "spec.x of the pod patch is datetime.date(2026, 1, 1)"),
        ("metadata: {labels: {on: x}}", "the key True below 'metadata.labels'"),
        ("spec: {$patch: merge}", "$patch: delete and $patch: replace are known"),
        ("spec: {$retainKeys: [a]}", "$patch: delete and $patch: replace are known"),
        (
            "spec: {containers: [{name: node, env: [{name: HF_TOKEN, value: canary}]}]}",
            "pass it with --secret-ref HF_TOKEN=SECRET/KEY",
        ),
    ],
)
def test_invalid_patches(tmp_path: Path, text: str, why: str) -> None:
    patch = tmp_path / "patch.yaml"
    patch.write_text(text)
    assert why in config_error(pod_patch=str(patch))


def test_an_empty_patch_changes_nothing(tmp_path: Path) -> None:
    patch = tmp_path / "patch.yaml"
    patch.touch()
    assert Options(pod_patch=str(patch)).pod_patch is None  # type: ignore[arg-type]


def test_a_missing_patch_file(tmp_path: Path) -> None:
    path = tmp_path / "none.yaml"
    assert f"{path} cannot be read: No such file or directory" in config_error(pod_patch=str(path))
