"""Connect to a cluster: by a context of the kubeconfig, or as a pod's own service account."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dist_train.errors import ConfigError
from launchers._kubernetes.stderr_messages import print_notice

_TOKEN = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")


@dataclass(frozen=True)
class Connection:
    """The official client and the address of its server. `context` None: from within the cluster."""

    client: Any
    server: str
    context: str | None


def connect(context: str | None) -> Connection:
    """Read the kubeconfig; no request is sent yet. Raises ConfigError with a hint."""
    client, config, config_error = _import_client()
    configuration = client.Configuration()
    # We have our own timeouts and back-off; urllib3 would retry three times, with warnings.
    configuration.retries = False
    paths = os.environ.get("KUBECONFIG") or "~/.kube/config"
    if not _existing_files(paths):
        _require_service_account(context, paths)
        try:
            config.load_incluster_config(client_configuration=configuration)
        except (config_error, OSError) as error:
            raise ConfigError(
                f"this pod's service account cannot be used: {error}", hint="export KUBECONFIG=FILE"
            ) from error
        print_notice(f"no kubeconfig: asking {configuration.host} as this pod's service account")
        return Connection(client.ApiClient(configuration), configuration.host, None)
    chosen = _context_name(paths, context)
    try:
        config.load_kube_config(config_file=paths, context=chosen, client_configuration=configuration)
    except (config_error, OSError, ValueError, TypeError, AttributeError, KeyError) as error:
        raise _unusable_kubeconfig(paths, error) from error
    return Connection(client.ApiClient(configuration), configuration.host, chosen)


def _import_client() -> tuple[Any, Any, type[Exception]]:
    try:
        from kubernetes import client, config
        from kubernetes.config.config_exception import ConfigException
    except ImportError as error:
        raise ConfigError(
            f"the Kubernetes client cannot be imported: {error}",
            hint="pip install 'dist-train[kubernetes]'; `--dry-run` of --kind job needs none",
        ) from error
    return client, config, ConfigException


def _existing_files(paths: str) -> list[Path]:
    """Those files of a list that exist: the client skips the others, as kubectl does."""
    return [path for text in paths.split(os.pathsep) if text and (path := Path(text).expanduser()).exists()]


def _context_name(paths: str, asked: str | None) -> str:
    """Resolve the context to its name: a later `kubectl config use-context` then changes nothing."""
    names, current = _contexts(paths)
    if asked is None and current is None:
        raise ConfigError(
            f"the kubeconfig {paths} has no current context",
            cause=f"its contexts: {', '.join(names) or 'none'}",
            hint="kubectl config use-context NAME; or give one with --context NAME",
        )
    chosen = asked or str(current)
    if chosen not in names:
        raise ConfigError(
            f"the kubeconfig {paths} has no context {chosen!r}",
            cause=f"its contexts: {', '.join(names) or 'none'}",
            hint="give one of them with --context NAME",
        )
    return chosen


def _contexts(paths: str) -> tuple[list[str], str | None]:
    import yaml

    names: list[str] = []
    current: str | None = None
    for path in _existing_files(paths):
        try:
            with path.open(encoding="utf-8") as file:
                tree = yaml.safe_load(file) or {}
            names += [str(entry["name"]) for entry in tree.get("contexts") or ()]
        except (OSError, ValueError, TypeError, AttributeError, KeyError, yaml.YAMLError) as error:
            raise _unusable_kubeconfig(str(path), error) from error
        # As in the client: the last file that has one wins.
        current = tree.get("current-context") or current
    return names, current


def _require_service_account(asked: str | None, paths: str) -> None:
    """Raise ConfigError where there is neither a kubeconfig nor a pod's service account."""
    if asked is not None or "KUBERNETES_SERVICE_HOST" not in os.environ or not _TOKEN.exists():
        raise ConfigError(
            f"there is no kubeconfig: {paths} does not exist",
            cause="" if asked is None else f"and so no context {asked!r}",
            hint="export KUBECONFIG=FILE (your cluster's administrators give you one, or `aws eks "
            "update-kubeconfig`, `gcloud container clusters get-credentials`, `az aks get-credentials`)",
        )


def _unusable_kubeconfig(paths: str, error: BaseException) -> ConfigError:
    return ConfigError(
        f"the kubeconfig {paths} cannot be used: {error}", hint="`kubectl config view` shows its content"
    )
