"""Versions, and their differences between nodes."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator

from dist_train.doctor.facts import Facts, NodeFacts
from dist_train.doctor.finding import Finding

# Ranks of one job exchange bytes by these: other versions hang, crash or compute something else.
_ALIKE = ("dist-train", "torch", "CUDA of torch", "ROCm of torch", "NCCL")
_SHOWN = ("dist-train", "torch", "Python", "CUDA of torch", "ROCm of torch", "NCCL", "driver")


def version_findings(facts: Facts) -> Iterator[Finding]:
    """The versions in use, those that differ, and a driver that is too old for torch."""
    if not facts.nodes:
        return
    differing = list(_differences(facts))
    yield from differing
    if not differing:
        first = facts.nodes[0].versions
        shown = ", ".join(f"{name} {first[name]}" for name in _SHOWN if first.get(name))
        yield Finding("ok", "versions", shown, tuple(node.node for node in facts.nodes))
    if facts.job.device == "cuda":
        for node in facts.nodes:
            yield from _driver(node)


def _differences(facts: Facts) -> Iterator[Finding]:
    names = dict.fromkeys(name for node in facts.nodes for name in node.versions)
    for name in names:
        by_version: dict[str, list[int]] = defaultdict(list)
        for node in facts.nodes:
            by_version[node.versions.get(name) or "none"].append(node.node)
        if len(by_version) < 2:
            continue
        usual = Counter({version: len(nodes) for version, nodes in by_version.items()}).most_common(1)[0][0]
        for version, nodes in by_version.items():
            if version == usual:
                continue
            must = name in _ALIKE
            yield Finding(
                "error" if must else "warning",
                "versions",
                f"{name} {version}, where others have {usual}",
                tuple(nodes),
                f"ranks with different versions of {name} hang, or do not compute the same"
                if must
                else "what one node does may not be what the others do",
                "give every node the same environment: a shared file system, or one image by its digest",
            )


def _driver(node: NodeFacts) -> Iterator[Finding]:
    built, driver = node.versions.get("CUDA of torch", ""), node.versions.get("CUDA of the driver", "")
    if built == "none":
        yield Finding(
            "error",
            "versions",
            f"torch {node.versions.get('torch', '?')} is built without CUDA",
            (node.node,),
            "it cannot use the GPUs of this node",
            "install the CUDA build of torch, or --device cpu",
        )
        return
    wanted, offered = _numbers(built), _numbers(driver)
    if not wanted or not offered or offered >= wanted:
        return
    same_major = offered[0] == wanted[0]
    yield Finding(
        "warning" if same_major else "error",
        "versions",
        f"driver {node.versions.get('driver', '?')} knows CUDA {driver}, torch is built for {built}",
        (node.node,),
        "within one major version CUDA runs on an older driver, without what is newer than it (PTX)"
        if same_major
        else "CUDA does not start on a driver of an older major version",
        f"a driver for CUDA {built} or newer, or a torch built for CUDA {driver}",
    )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])
