"""k8s/*.yaml are what the command in k8s/README.md renders, byte for byte; the others there are sound."""

from __future__ import annotations

import difflib
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from warm_commands.warm_launch import cluster_cli

FOLDER = Path(__file__).parents[2] / "k8s"
KINDS = ("job", "jobset", "volcano", "trainjob")


def documented_command() -> str:
    """The README's command, on one line."""
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    found = re.search(r"^    (for kind in .*?; done)$", text, re.M | re.S)
    assert found is not None, "k8s/README.md states the command that renders the manifests"
    return re.sub(r"\\\n\s*", "", found[1])


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_what_the_stated_command_renders(kind: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    command = documented_command()
    found = re.fullmatch(r"for kind in ([\w ]+); do OMP_NUM_THREADS=(\d+) (.*) > \$kind\.yaml; done", command)
    assert found is not None, command
    assert tuple(found[1].split()) == KINDS
    _, *argv = shlex.split(found[3].replace("$kind", kind))
    done = cluster_cli(argv, cwd=tmp_path, env={"OMP_NUM_THREADS": found[2]}, timeout_s=60)
    assert done.code == 0, done
    golden = (FOLDER / f"{kind}.yaml").read_text(encoding="utf-8")
    if done.stdout != golden:
        lines = (text.splitlines() for text in (golden, done.stdout))
        diff = "\n".join(difflib.unified_diff(*lines, f"k8s/{kind}.yaml", "rendered", lineterm=""))
        again = command.replace("> $kind.yaml", f"> {FOLDER}/$kind.yaml")
        hint = f'cd "$(mktemp -d)" && touch train.py && {again}'
        pytest.fail(f"{diff}\n\nif this is wanted:\n{hint}", pytrace=False)


@pytest.mark.parametrize("kind", KINDS)
def test_it_has_no_path_of_the_machine_that_rendered_it(kind: str) -> None:
    text = (FOLDER / f"{kind}.yaml").read_text(encoding="utf-8")
    places = set(re.findall(r"(?<![\w$\"}/.])/\w[\w./%-]+", text))
    ours = {"/tmp", "/tmp/inductor", "/tmp/triton", "/tmp/cache", "/runs", "/runs/train", "/dev/shm"}
    assert places == {*ours, "/workspace", "/workspace/train.py"}


def objects(name: str) -> list[Any]:
    """The documents of a file."""
    return list(yaml.safe_load_all((FOLDER / name).read_text(encoding="utf-8")))


def test_the_rights_are_the_least() -> None:
    role, binding = objects("rbac.yaml")
    assert (role["kind"], binding["kind"]) == ("Role", "RoleBinding"), "of one namespace"
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    rights = {
        (group, resource): set(rule["verbs"])
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    named = {resource for _, resource in rights}
    assert not {"secrets", "pods/exec", "pods/attach", "*"} & named
    assert rights["", "pods"] == rights["", "events"] == {"get", "list", "watch"}
    assert rights["", "pods/log"] == {"get"}
    whole = {"create", "get", "list", "watch", "delete"}
    made = {key for key, verbs in rights.items() if "create" in verbs}
    assert all(rights[key] - {"patch"} == whole for key in made)
    # Only to write the job as owner of what lies beside it.
    assert {resource for (_, resource), verbs in rights.items() if "patch" in verbs} == {
        "services",
        "configmaps",
        "networkpolicies",
        "trainingruntimes",
    }


@pytest.mark.parametrize("kind", KINDS)
def test_whatever_is_rendered_may_be_created(kind: str) -> None:
    role = objects("rbac.yaml")[0]
    for manifest in objects(f"{kind}.yaml"):
        group = manifest["apiVersion"].rpartition("/")[0]
        plural = manifest["kind"].lower() + "s"
        assert any(
            group in rule["apiGroups"] and plural in rule["resources"] and "create" in rule["verbs"]
            for rule in role["rules"]
        ), f"{plural}.{group}"


def test_the_volume_is_the_one_that_the_manifests_mount() -> None:
    [claim] = objects("pvc.yaml")
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    volumes = objects("job.yaml")[-1]["spec"]["template"]["spec"]["volumes"]
    assert volumes[0]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]


def test_the_image_runs_the_agent_as_a_number_that_is_not_root() -> None:
    lines = (FOLDER / "Dockerfile").read_text(encoding="utf-8").splitlines()
    [base] = [line for line in lines if line.startswith("FROM ")]
    assert re.fullmatch(r"FROM python:\d+\.\d+\.\d+-slim-\w+", base), "pinned"
    assert all("-c constraints.txt" in line for line in lines if "pip install" in line)
    [user] = [line.removeprefix("USER ") for line in lines if line.startswith("USER ")]
    assert re.fullmatch(r"[1-9]\d*:0", user), "runAsNonRoot can be checked only of a number"
    agent = '["python", "-P", "-m", "dist_train.agent"]'
    assert f"ENTRYPOINT {agent}" in lines
    command = objects("job.yaml")[-1]["spec"]["template"]["spec"]["containers"][0]["command"]
    assert command[:4] == ["python", "-P", "-m", "dist_train.agent"]


def test_what_the_image_copies_is_in_the_build_context() -> None:
    text = (FOLDER / "Dockerfile").read_text(encoding="utf-8")
    copied = {word for line in re.findall(r"^COPY (.*) \S+$", text, re.M) for word in line.split()}
    kept = (FOLDER / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    assert {f"!{word}" for word in copied} == {line for line in kept if line.startswith("!")}
    assert all((FOLDER.parent / word).exists() for word in copied)
