"""Render the manifests of an app; write them as YAML, and read them back."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from dist_train.jobs import JobSpec
from launchers._kubernetes.manifest import support_objects
from launchers._kubernetes.manifest.indexed_job import job
from launchers._kubernetes.manifest.jobset import jobset
from launchers._kubernetes.manifest.kubernetes_options import Options
from launchers._kubernetes.manifest.object_size import check_object_sizes
from launchers._kubernetes.manifest.trainjob import training_runtime, trainjob
from launchers._kubernetes.manifest.volcano import volcano_job

if TYPE_CHECKING:
    from torchx.specs import AppDef

# PyYAML writes these unquoted, but kubectl's YAML (Go) reads numbers and booleans (1e-4, 0o7, y).
_AMBIGUOUS = re.compile(r"(?!\d+[KMGT]i$)[-+.]?\d.*|[yYnN]")
# Line breaks in some YAML parsers, and characters in others: escaped.
_ODD_BREAKS = re.compile("[\r\x85\u2028\u2029\ufeff]")


def manifests(app: AppDef, spec: JobSpec, options: Options) -> list[dict[str, Any]]:
    """Render every object in the order of creation, the job object last. Raises ConfigError."""
    found = [
        *([support_objects.config_map(spec, options)] if spec.config_yaml is not None else []),
        *([support_objects.network_policy(spec, options)] if options.network_policy else []),
        *_job(app, spec, options),
    ]
    check_object_sizes(found)
    return found


def _job(app: AppDef, spec: JobSpec, options: Options) -> list[dict[str, Any]]:
    match options.kind:
        case "job":
            return [support_objects.service(spec, options), job(app, spec, options)]
        case "jobset":
            return [jobset(app, spec, options)]
        case "trainjob":
            return [training_runtime(app, spec, options), trainjob(spec, options)]
        case "volcano":
            return [volcano_job(app, spec, options)]


def to_yaml(rendered: list[dict[str, Any]]) -> bytes:
    """Write one document per object: for --dry-run, `kubectl apply -f -` and submit."""
    import yaml

    class _Dumper(yaml.SafeDumper):
        """Without aliases, and with strings that every YAML parser reads as strings."""

        def ignore_aliases(self, data: object) -> bool:
            return True

    def text(dumper: yaml.SafeDumper, value: str) -> yaml.Node:
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, _style(value))

    _Dumper.add_representer(str, text)
    # No folding, for readability.
    dumped = yaml.dump_all(
        rendered, Dumper=_Dumper, sort_keys=False, explicit_start=True, allow_unicode=True, width=10**6
    )
    assert isinstance(dumped, str)
    return dumped.encode()


def _style(value: str) -> str | None:
    if _ODD_BREAKS.search(value):
        return '"'
    if "\n" in value:
        return "|"
    return "'" if _AMBIGUOUS.fullmatch(value) else None


def from_yaml(content: bytes) -> list[dict[str, Any]]:
    """Read the objects of a plan; the inverse of `to_yaml`."""
    import yaml

    # The C parser, where PyYAML was built with it, takes an eighth of the time.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return [document for document in yaml.load_all(content.decode(), loader) if document is not None]
