"""`make test-cluster`: check what was given, run the tests, remove everything of them, also after Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from site_cluster.site import Missing, Site, read_site  # noqa: E402
from site_cluster.site_check import check  # noqa: E402
from site_cluster.site_removal import remove_session  # noqa: E402

from dist_train.errors import DistTrainError  # noqa: E402
from launchers._kubernetes.api.cluster import Cluster  # noqa: E402

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main() -> int:
    """Return pytest's exit code, 2 where something is missing, 1 where something is left."""
    for number in _SIGNALS:  # SIGINT too: a shell ignores it for background jobs
        signal.signal(number, _interrupt)
    try:
        site = read_site()
        cluster = Cluster.open(None, site.namespace)
        check(cluster, site)
    except (Missing, DistTrainError) as error:
        _say(f"cannot run: {error}")
        return 2
    _say(f"session {site.session} in namespace {site.namespace} of {cluster.server}")
    code, left = 1, ["nothing was removed"]
    try:
        code = _tests(site)
    except KeyboardInterrupt:
        code = 130
    finally:
        # A second Ctrl-C does not interrupt the removal.
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        _say("removing all of it")
        left = _removed(cluster, site)
    for text in left:
        _say(f"left behind: {text}")
    return code or int(bool(left))


def _tests(site: Site) -> int:
    words = [sys.executable, "-m", "pytest", "-q", "-x", "-m", "", str(HERE / "life_cycle.py"), *sys.argv[1:]]
    environ = {**os.environ, **site.environ}
    process = subprocess.Popen(words, cwd=HERE.parents[1], env=environ)
    try:
        return process.wait()
    except KeyboardInterrupt:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        raise


def _removed(cluster: Cluster, site: Site) -> list[str]:
    try:
        return remove_session(cluster, site)
    except (DistTrainError, subprocess.CalledProcessError) as error:
        remove = f"kubectl -n {site.namespace} delete jobs,services,configmaps,pods -l dist-train/run-id"
        return [f"{error}; look for {site.session} in `{remove}`"]


def _say(text: str) -> None:
    print(f"[test-cluster] {text}", file=sys.stderr, flush=True)


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
