"""A job that has not ended: what it waits for, in words, and the command that shows more."""

from __future__ import annotations

from dist_train.jobs import JobState
from dist_train.jobs.launcher import Phase
from launchers._kubernetes.state.handles import Job
from launchers._kubernetes.state.pods import Pod, newest_generation, newest_of_nodes
from launchers._kubernetes.state.reasons import ended_words, guilty_of, pod_words
from launchers._kubernetes.state.sight import Sight
from launchers._kubernetes.state.top import Top

_SOURCE = "API server"


def removed(job: Job, sight: Sight) -> JobState:
    """Its deletion was ordered, and not all of it is gone."""
    left = ", ".join(pod.name for pod in newest_of_nodes(sight.pods).values())
    text, commands = _stuck(job, sight)
    still = f"it is being removed; {left} not gone yet" if left else "it is being removed"
    return JobState("running", _SOURCE, _join(still, text), next=commands)


def left_alone(job: Job, sight: Sight) -> JobState:
    """Its pods outlive the object that is the job: for a moment, or by `kubectl delete --cascade=orphan`."""
    left = ", ".join(pod.name for pod in newest_of_nodes(sight.pods).values())
    gone = f"its {job.top.kind} was deleted"
    return JobState("running", _SOURCE, f"{gone}, and {left} still there: none will be made anew")


def at_work(job: Job, sight: Sight) -> JobState:
    """Its controller makes its pods, or would."""
    top, newest = sight.top, newest_of_nodes(sight.pods)
    assert top is not None
    begun = bool(top.restarts) or any(pod.ended for pod in sight.pods)
    phase = _phase(newest, "requeued" if begun else "pending")
    if top.stage == "suspended":
        return _suspended(job, sight, top, phase)
    describe = (job.kubectl(f"describe {job.top.full_name} {job.name}"),)
    if not newest:
        why = sight.notes[:2] or (top.message,)
        head = "no pod could be made" if sight.notes else "its pods are not there yet"
        return JobState(phase, _SOURCE, _join(head, *why), next=describe)
    text, commands = _stuck(job, sight)
    if text:
        return JobState(phase, _SOURCE, text, next=commands)
    hopeless = any(pod_words(pod, sight.now).stuck for pod in newest.values())
    if top.size is not None and len(newest) < top.size and not hopeless:
        head = f"{len(newest)} of {top.size} pods are there"
        return JobState(phase, _SOURCE, _join(head, *sight.notes[:1]), next=describe)
    return _of_pods(job, sight, newest, phase)


def _phase(newest: dict[int, Pod], else_phase: Phase) -> Phase:
    """Running while any agent does; and while its controller has not noticed that all are done."""
    pods = newest.values()
    if any(pod.container.running and not pod.deleting for pod in pods):
        return "running"
    done = bool(newest) and all(pod.container.exit_code == 0 for pod in pods)
    return "running" if done else else_phase


def _of_pods(job: Job, sight: Sight, newest: dict[int, Pod], phase: Phase) -> JobState:
    """The pod that holds up the others: one that cannot start, one that waits, one that comes again."""
    words = {pod.name: pod_words(pod, sight.now) for pod in newest.values()}
    starting = [pod for pod in newest.values() if not pod.begun and not pod.deleting and not pod.ended]
    starting.sort(key=lambda pod: not words[pod.name].stuck)
    lingering = [pod for pod in newest.values() if pod.beside and words[pod.name].stuck]
    if held := [*starting, *lingering]:
        found = words[held[0].name]
        notes = sight.notes[:1] if not found.stuck else ()
        still = "it will not go on by itself" if found.stuck else ""
        command = (job.kubectl(found.command),) if found.command else ()
        after = "" if found.stuck else _after(sight, newest)
        return JobState(phase, _SOURCE, _join(_named(held, found.text), *notes, still, after), next=command)
    if leaving := [
        pod for pod in newest.values() if pod.deleting or (pod.ended and pod.container.exit_code != 0)
    ]:
        said = _named(leaving, words[leaving[0].name].text)
        ending = sight.top is not None and sight.top.ending
        return JobState(
            phase, _SOURCE, _join(said, "none is made anew" if ending else "its pods are made anew")
        )
    if silent := [pod for pod in newest.values() if pod.silent]:
        found = words[silent[0].name]
        waits = "its pods are made anew once the cluster gives it up"
        return JobState(
            phase, _SOURCE, _join(_named(silent, found.text), waits), next=(job.kubectl(found.command),)
        )
    hosts = ", ".join(dict.fromkeys(pod.host for pod in newest.values() if pod.host))
    return JobState(phase, _SOURCE, f"on {hosts}" if hosts else "")


def _after(sight: Sight, newest: dict[int, Pod]) -> str:
    """Why there is another start: the pods of the one before may not be the newest for long."""
    before = newest_generation(pod for pod in sight.pods if pod is not newest.get(pod.node or 0))
    pod = guilty_of(before)
    return "" if pod is None else f"made anew after pod {pod.name}: {ended_words(pod).text}"


def _named(pods: list[Pod], text: str) -> str:
    more = f" and {len(pods) - 1} more" if len(pods) > 1 else ""
    return f"pod {pods[0].name}{more}: {text}"


def _stuck(job: Job, sight: Sight) -> tuple[str, tuple[str, ...]]:
    """Pods of machines that do not answer: in words, and the commands that end them by force."""
    found = [
        (pod, words) for pod in sight.pods if (words := pod_words(pod, sight.now)).stuck and pod.deleting
    ]
    said = "; ".join(f"pod {pod.name}: {words.text}" for pod, words in found)
    # A job that is at work waits for the machine's end; of one that is removed force is enough.
    at_work = sight.top is not None and not sight.top.deleting
    commands = [
        text
        for _, words in found
        for text in ((*words.also, words.command) if at_work else (words.command, *words.also))
    ]
    return said, tuple(job.kubectl(text) for text in dict.fromkeys(commands))


def _suspended(job: Job, sight: Sight, top: Top, phase: Phase) -> JobState:
    if top.queue:
        notes = sight.notes[:2] or (top.message or "the queue has not admitted it yet",)
        show = job.kubectl("get workloads.kueue.x-k8s.io -o wide")
        return JobState(phase, _SOURCE, _join(f"suspended in the queue {top.queue}", *notes), next=(show,))
    change = '{"spec":{"suspend":false}}'
    start = job.kubectl(f"patch {job.top.full_name} {job.name} --type merge -p '{change}'")
    return JobState(phase, _SOURCE, "it is suspended, and no queue will start it", next=(start,))


def _join(*parts: str) -> str:
    return "; ".join(part for part in parts if part)
