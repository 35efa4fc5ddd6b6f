"""A run whose pods fare as the test says, and the commands of a person who launched it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from k8s_cluster import KubernetesCluster
from k8s_pods import Pod
from k8s_runs import TWO_BY_ONE, following, launch, verb, wait_for

from dist_train import env
from dist_train.agent.termination import End, message, record_of
from dist_train.rundir.failure import Failure
from dist_train.testing import CliResult

SCRIPT = "hello.py"


def last_word(
    code: int, why: str = "", node: int = 0, step: int | None = None, failure: Failure | None = None
) -> str:
    """What an agent writes at its end, by the agent's own code."""
    end = End(code, why, failure, attempt=0)
    record = record_of(end, None, {env.NODE_RANK: str(node), env.RUN_ID: "any"})
    return message({**record, "step": step}).decode()


@dataclass(frozen=True)
class Followed:
    """`dist-train launch` (or `logs -f`) at work; all that it has written is in a file."""

    command: subprocess.Popen[bytes]
    out: Path

    @property
    def text(self) -> str:
        return self.out.read_text(errors="replace")

    def wait_said(self, text: str, within_s: float = 15) -> None:
        """Until it has said so; it must not have ended without."""

        def said() -> bool:
            ended = self.command.poll()
            assert text in self.text or ended is None, f"ended with {ended}\n{self.text}"
            return text in self.text

        try:
            wait_for(said, repr(text), within_s)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.text}") from None

    def code(self, within_s: float = 30) -> int:
        """Its exit code, once it has ended."""
        try:
            return self.command.wait(within_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"not ended within {within_s:g} s\n{self.text}") from None


@dataclass(frozen=True)
class Scene:
    """A control plane, and a folder with a script to launch."""

    plane: KubernetesCluster
    folder: Path

    def submit(self, name: str, *words: object, size: tuple[str, ...] = TWO_BY_ONE) -> CliResult:
        """`launch --detach`, which must be accepted."""
        done = launch(self.folder, name, "--detach", *size, *words, SCRIPT, timeout_s=60)
        assert done.code == 0, done
        return done

    @contextmanager
    def follow(self, name: str, *words: object, size: tuple[str, ...] = TWO_BY_ONE) -> Iterator[Followed]:
        """`launch`, which follows."""
        with following(self.folder, name, *size, *words, SCRIPT) as command:
            yield Followed(command, self.folder / "out.txt")

    def verb(self, *words: str) -> CliResult:
        """Another command: `status held`."""
        return verb(self.folder, *words)

    def status(self, name: str) -> str:
        """What `status` shows; it could answer."""
        told = self.verb("status", name)
        assert told.code == 0, told
        return told.stdout

    def code(self, name: str) -> int:
        """Of `status --exit-code`."""
        return self.verb("status", name, "--exit-code").code

    def pod_watches(self) -> int:
        """How many watches of pods clients have begun."""
        begun = [one for one in self.plane.requests if one.query.get("watch") == "true"]
        return sum(one.path.endswith("/pods") for one in begun)

    def pods(self, count: int = 2) -> list[Pod]:
        """The living pods by index, once there are so many and each has a node."""
        self.plane.wait_for(lambda: len(self._living()) == count, f"{count} pods on nodes")
        return self._living()

    def running(self, count: int = 2) -> list[Pod]:
        """The living pods, which run from now on."""
        found = self.pods(count)
        self.plane.hand.run(*found)
        return found

    def _living(self) -> list[Pod]:
        found = [pod for pod in self.plane.pods() if not pod.has_ended and not pod.is_terminating]
        return sorted((pod for pod in found if pod.node), key=lambda pod: pod.index)
