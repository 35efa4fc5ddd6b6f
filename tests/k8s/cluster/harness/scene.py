"""Scene: a run whose pods have the status that the test sets, and the user's commands."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from warm_commands.warm_launch import BackgroundCommand

from cluster.harness.runs import TWO_BY_ONE, following, launch, verb, wait_for
from cluster.kubernetes_cluster import KubernetesCluster
from cluster.pod import Pod
from dist_train import env
from dist_train.agent.platform.agent_exit import AgentExit
from dist_train.agent.platform.termination_message import encode_within_limit, exit_record
from dist_train.rundir.failure import Failure
from dist_train.testing import CliResult

SCRIPT = "hello.py"


def termination_message(
    code: int, why: str = "", node: int = 0, step: int | None = None, failure: Failure | None = None
) -> str:
    """Termination message of an agent, by the agent's code."""
    end = AgentExit(code, why, failure, attempt=0)
    record = exit_record(end, None, {env.NODE_RANK: str(node), env.RUN_ID: "any"})
    return encode_within_limit({**record, "step": step}).decode()


@dataclass(frozen=True)
class Followed:
    """A running `dist-train launch` (or `logs -f`), with its output in a file."""

    command: BackgroundCommand
    out: Path

    @property
    def text(self) -> str:
        return self.out.read_text(errors="replace")

    def wait_output(self, text: str, within_s: float = 15) -> None:
        """Wait until the output contains the text; fails if the command ends without."""

        def has_written() -> bool:
            ended = self.command.poll()
            assert text in self.text or ended is None, f"ended with {ended}\n{self.text}"
            return text in self.text

        try:
            wait_for(has_written, repr(text), within_s)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.text}") from None

    def code(self, within_s: float = 30) -> int:
        """Wait for the end; returns the exit code."""
        try:
            return self.command.wait(within_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"not ended within {within_s:g} s\n{self.text}") from None


@dataclass(frozen=True)
class Scene:
    """A control plane without nodes, and a folder with a script to launch."""

    plane: KubernetesCluster
    folder: Path

    def submit(self, name: str, *args: object, size: tuple[str, ...] = TWO_BY_ONE) -> CliResult:
        """`launch --detach`; fails unless it is accepted."""
        done = launch(self.folder, name, "--detach", *size, *args, SCRIPT, timeout_s=60)
        assert done.code == 0, done
        return done

    @contextmanager
    def follow(self, name: str, *args: object, size: tuple[str, ...] = TWO_BY_ONE) -> Iterator[Followed]:
        """`launch` in the background, which follows the job."""
        with following(self.folder, name, *size, *args, SCRIPT) as command:
            yield Followed(command, self.folder / "out.txt")

    def verb(self, *args: str) -> CliResult:
        """Run another command: `status held`."""
        return verb(self.folder, *args)

    def status(self, name: str) -> str:
        """Output of `status`; fails unless its exit code is 0."""
        result = self.verb("status", name)
        assert result.code == 0, result
        return result.stdout

    def code(self, name: str) -> int:
        """Exit code of `status --exit-code`."""
        return self.verb("status", name, "--exit-code").code

    def pod_watches(self) -> int:
        """Number of watches of pods that clients have started."""
        started = [one for one in self.plane.requests if one.query.get("watch") == "true"]
        return sum(one.path.endswith("/pods") for one in started)

    def pods(self, count: int = 2) -> list[Pod]:
        """Wait for `count` active pods on nodes; returns them by index."""
        self.plane.wait_for(lambda: len(self._active()) == count, f"{count} pods on nodes")
        return self._active()

    def running(self, count: int = 2) -> list[Pod]:
        """Set the active pods Running; returns them."""
        found = self.pods(count)
        self.plane.manual_kubelet.run(*found)
        return found

    def _active(self) -> list[Pod]:
        found = [pod for pod in self.plane.pods() if not pod.has_ended and not pod.is_terminating]
        return sorted((pod for pod in found if pod.node), key=lambda pod: pod.index)
