"""The way to a cluster: the kubeconfig's context, or a pod's own service account."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dist_train.errors import ConfigError
from launchers._kubernetes.terminal import say

_TOKEN = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")


@dataclass(frozen=True)
class Connection:
    """The official client, and which cluster it asks. `context` None: from within the cluster."""

    client: Any
    server: str
    context: str | None


def connect(context: str | None) -> Connection:
    """Read the kubeconfig; nothing is asked of the cluster yet. Raises ConfigError with the mend."""
    client, config, config_error = _library()
    configuration = client.Configuration()
    # Our own bounds and back-off; urllib3's would repeat a refused connection three times, aloud.
    configuration.retries = False
    paths = os.environ.get("KUBECONFIG") or "~/.kube/config"
    if not _existing(paths):
        _refuse_outside(context, paths)
        try:
            config.load_incluster_config(client_configuration=configuration)
        except (config_error, OSError) as error:
            raise ConfigError(
                f"this pod's service account cannot be used: {error}", mend="export KUBECONFIG=FILE"
            ) from error
        say(f"no kubeconfig: asking {configuration.host} as this pod's service account")
        return Connection(client.ApiClient(configuration), configuration.host, None)
    chosen = _chosen(paths, context)
    try:
        config.load_kube_config(config_file=paths, context=chosen, client_configuration=configuration)
    except (config_error, OSError, ValueError, TypeError, AttributeError, KeyError) as error:
        raise _unusable(paths, error) from error
    return Connection(client.ApiClient(configuration), configuration.host, chosen)


def _library() -> tuple[Any, Any, type[Exception]]:
    try:
        from kubernetes import client, config
        from kubernetes.config.config_exception import ConfigException
    except ImportError as error:
        raise ConfigError(
            f"the Kubernetes client cannot be imported: {error}",
            mend="pip install 'dist-train[kubernetes]'; `--dry-run` of --kind job needs none",
        ) from error
    return client, config, ConfigException


def _existing(paths: str) -> list[Path]:
    """The files that there are: the client skips the others of a list, as kubectl does."""
    return [path for word in paths.split(os.pathsep) if word and (path := Path(word).expanduser()).exists()]


def _chosen(paths: str, asked: str | None) -> str:
    """The context by name, so that a later `kubectl config use-context` does not change what it means."""
    names, current = _contexts(paths)
    if asked is None and current is None:
        raise ConfigError(
            f"the kubeconfig {paths} has no current context",
            cause=f"its contexts: {', '.join(names) or 'none'}",
            mend="kubectl config use-context NAME; or give one with --context NAME",
        )
    chosen = asked or str(current)
    if chosen not in names:
        raise ConfigError(
            f"the kubeconfig {paths} has no context {chosen!r}",
            cause=f"its contexts: {', '.join(names) or 'none'}",
            mend="give one of them with --context NAME",
        )
    return chosen


def _contexts(paths: str) -> tuple[list[str], str | None]:
    import yaml

    names: list[str] = []
    current: str | None = None
    for path in _existing(paths):
        try:
            with path.open(encoding="utf-8") as file:
                tree = yaml.safe_load(file) or {}
            names += [str(entry["name"]) for entry in tree.get("contexts") or ()]
        except (OSError, ValueError, TypeError, AttributeError, KeyError, yaml.YAMLError) as error:
            raise _unusable(str(path), error) from error
        # As the client has it: the last file that names one wins.
        current = tree.get("current-context") or current
    return names, current


def _refuse_outside(asked: str | None, paths: str) -> None:
    """Without a kubeconfig only a pod with a service account knows a cluster."""
    if asked is not None or "KUBERNETES_SERVICE_HOST" not in os.environ or not _TOKEN.exists():
        raise ConfigError(
            f"there is no kubeconfig: {paths} does not exist",
            cause="" if asked is None else f"and so no context {asked!r}",
            mend="export KUBECONFIG=FILE (your cluster's administrators give you one, or `aws eks "
            "update-kubeconfig`, `gcloud container clusters get-credentials`, `az aks get-credentials`)",
        )


def _unusable(paths: str, error: BaseException) -> ConfigError:
    return ConfigError(
        f"the kubeconfig {paths} cannot be used: {error}", mend="`kubectl config view` shows what it says"
    )
