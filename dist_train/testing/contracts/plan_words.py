"""Every word that a plan's files hold, after the quoting of JSON, YAML or the shell is undone."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from typing import Any

import yaml

from dist_train.jobs import JobSpec, Plan

# What Kubernetes reads in the commands and variables of a container.
_DOLLARS = re.compile(r"\$\$|\$\([^)]*\)")


class PlanWords:
    """Words of JSON and YAML files, and the text of scripts."""

    def __init__(self) -> None:
        self.words: set[str] = set()
        self.pairs: set[tuple[str, str]] = set()
        self.scripts: list[str] = []

    def has(self, word: str) -> bool:
        """A whole string of a file, or a word of a script in shlex's quoting."""
        quoted = shlex.quote(word)
        return word in self.words or any(quoted in script for script in (*self.scripts, *self.words))

    def has_pair(self, name: str, value: str) -> bool:
        """A variable: a key, a {name, value} object, or NAME=VALUE in any quoting."""
        if (name, value) in self.pairs or self.has(f"{name}={value}"):
            return True
        return any(f"{name}={shlex.quote(value)}" in text for text in (*self.scripts, *self.words))


def words_of(plan: Plan, spec: JobSpec) -> PlanWords:
    """Read every file of a plan; AssertionError for one that cannot be read as what its name says.

    A copy of the whole job's record is passed over: what counts is what reaches the agent.
    """
    found = PlanWords()
    record = json.loads(json.dumps(spec.to_json()))
    for name, content in plan.files:
        text = content.decode()
        suffix = name.rpartition(".")[2]
        if suffix not in ("json", "yaml", "yml"):
            found.scripts.append(text)
            continue
        try:
            trees = [json.loads(text)] if suffix == "json" else list(yaml.safe_load_all(text))
        except (ValueError, yaml.YAMLError) as error:
            raise AssertionError(f"{name} of the plan is not {suffix}: {error}") from error
        for tree in trees:
            _collect(_expanded(tree) if _is_manifest(tree) else tree, record, found)
    return found


def _is_manifest(tree: Any) -> bool:
    return isinstance(tree, dict) and "apiVersion" in tree and "kind" in tree


def _expanded(tree: Any) -> Any:
    """A manifest's strings as its containers get them: `$$` is one dollar, `$(NAME)` is something else."""
    if isinstance(tree, str):
        return _DOLLARS.sub(lambda match: "$" if match[0] == "$$" else "<expanded>", tree)
    if isinstance(tree, dict):
        return {key: _expanded(value) for key, value in tree.items()}
    return [_expanded(item) for item in tree] if isinstance(tree, list) else tree


def _collect(tree: Any, record: Any, found: PlanWords) -> None:
    for node in _nodes(tree, record):
        if isinstance(node, str):
            found.words.add(node)
        elif isinstance(node, dict):
            found.pairs |= {(str(key), value) for key, value in node.items() if isinstance(value, str)}
            if isinstance(node.get("name"), str) and isinstance(node.get("value"), str):
                found.pairs.add((node["name"], node["value"]))
        elif isinstance(node, list) and len(node) == 2 and all(isinstance(item, str) for item in node):
            found.pairs.add((node[0], node[1]))


def _nodes(tree: Any, record: Any) -> Iterator[Any]:
    if tree == record:
        return
    yield tree
    children = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ()
    for child in children:
        yield from _nodes(child, record)
