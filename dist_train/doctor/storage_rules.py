"""Disks of each node, and whether all nodes see the same run directory soon enough."""

from __future__ import annotations

from collections.abc import Iterator

from dist_train.doctor.facts import DiskFacts, Facts, SharedFileFacts
from dist_train.doctor.finding import Finding
from dist_train.rundir.format_amounts import size

_FULL_BYTES = 256 << 20
_SCARCE_BYTES = 10 << 30
_SCARCE_FILES = 10_000
_SLOW_S = 0.25
_LATE_S = 2.0  # what an NFS client may keep from its cache by default is 3 s to 60 s


def storage_findings(facts: Facts) -> Iterator[Finding]:
    """Room, latency and locks of each node's disks; then what the nodes see of each other's files."""
    for node in facts.nodes:
        for disk in node.disks:
            yield from _disk(node.node, disk)
    if facts.job.nodes < 2:
        yield Finding("skipped", "shared files", "one node: nobody else reads the run directory")
    for seen in facts.shared_files:
        yield _shared(seen)


def _disk(node: int, disk: DiskFacts) -> Iterator[Finding]:
    what = disk.what
    if disk.problem:
        yield Finding(
            "error",
            what,
            f"{disk.path}: {disk.problem}",
            (node,),
            "ranks write there",
            "--run-dir DIR on a file system that every node can write"
            if what == "run directory"
            else "set TMPDIR to a folder that can be written",
        )
        return
    value = f"{size(disk.free)} free of {size(disk.total)} ({disk.kind or 'kind not known'})"
    scarce = disk.free < _SCARCE_BYTES or (disk.free_files or _SCARCE_FILES) < _SCARCE_FILES
    if scarce:
        files = "" if disk.free_files is None else f", {disk.free_files} files"
        yield Finding(
            "error" if disk.free < _FULL_BYTES else "warning",
            what,
            value + files,
            (node,),
            "a checkpoint that does not fit is not committed, and the run ends with 74"
            if what == "run directory"
            else "torch.compile, sockets and loader workers put files there",
            f"make room in {disk.path}" + ("; --run-dir DIR" if what == "run directory" else "; set TMPDIR"),
        )
    if disk.write_s is not None and disk.write_s > _SLOW_S:
        yield Finding(
            "warning",
            what,
            f"a small file takes {disk.write_s * 1000:.0f} ms to be safe on disk",
            (node,),
            "every checkpoint, record and log waits for that",
            f"a faster file system than {disk.path} ({disk.kind})",
        )
    elif disk.write_s is not None and not scarce:
        yield Finding("ok", what, f"{value}; a small file in {disk.write_s * 1000:.1f} ms", (node,))
    if disk.locks is False and what == "run directory":
        yield Finding(
            "warning",
            what,
            "flock does not work there",
            (node,),
            "--init-method file:// and libraries that lock files (datasets, triton) fail or hang",
            "mount Lustre with -o flock, NFSv3 with lockd; keep caches on a local disk",
        )


def _shared(seen: SharedFileFacts) -> Finding:
    check, nodes = "shared files", (0, seen.node)
    hint = "one mount with the same options on all nodes; NFS: -o actimeo=1 or noac for the run directory"
    if seen.problem:
        return Finding("error", check, seen.problem, nodes, "all nodes use one run directory", hint)
    if seen.new_s is None or seen.rewritten_s is None:
        what = "a new file" if seen.new_s is None else "what was written again into a file"
        why = "node 0 decides from which checkpoint to go on, and the others must find it"
        return Finding("error", check, f"node {seen.node} never saw {what}", nodes, why, hint)
    worst = max(seen.new_s, seen.rewritten_s)
    value = f"node {seen.node} sees node 0's files after {_milliseconds(worst)}"
    if seen.stale:
        return Finding(
            "warning",
            check,
            f"{value}; an open after the close read the old content",
            nodes,
            "the file system does not keep close-to-open consistency: programs that rely on it read old data",
            hint,
        )
    if worst > _LATE_S:
        return Finding("warning", check, value, nodes, "resume and cancel wait for that", hint)
    return Finding("ok", check, f"{value}, rewritten ones at the first open", nodes)


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms" if seconds < 1 else f"{seconds:.1f} s"
