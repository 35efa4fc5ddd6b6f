"""What is known of the nodes of a job: each one's own facts, and what was measured between them."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

UNLIMITED = -1


class _Facts(BaseModel):
    # Keys of a later version are ignored: an old report may be read by a new command, and the reverse.
    model_config = ConfigDict(frozen=True, extra="ignore")


class NvLink(_Facts):
    """One NVLink of a GPU.

    Attributes:
        rate: bytes per second, one way.
        errors: replays and CRC errors since the driver was loaded.
    """

    number: int
    active: bool
    rate: float | None = None
    errors: int | None = None


class GpuFacts(_Facts):
    """A GPU as NVML describes it; None where the card or the driver does not say.

    Attributes:
        uncorrected_ecc: errors since the driver was loaded that ECC could not correct.
        remap_pending: rows of memory are replaced at the next reset.
        remap_failed: there was no spare row left.
        slowdowns: why the clock is held down now, where it is hardware or heat.
        pcie_width: lanes in use, and `pcie_width_most`: what card and slot can do.
        others_memory: bytes that other processes hold.
    """

    number: str
    uuid: str
    name: str
    memory_total: int = 0
    others_memory: int = 0
    ecc: bool | None = None
    uncorrected_ecc: int | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    temperature: int | None = None
    slowdowns: tuple[str, ...] = ()
    prohibited: bool = False
    pcie_generation: int | None = None
    pcie_width: int | None = None
    pcie_width_most: int | None = None
    nvlinks: tuple[NvLink, ...] = ()


class Interface(_Facts):
    """A network interface; speed in Mbit/s, 0 where the kernel does not know it."""

    name: str
    addresses: tuple[str, ...] = ()
    up: bool = True
    mtu: int = 0
    speed: int = 0


class InfinibandPort(_Facts):
    """A port of an InfiniBand or RoCE adapter; rate in Gbit/s."""

    device: str
    port: int
    active: bool
    rate: float = 0.0


class NetworkFacts(_Facts):
    """A node's network as its ranks use it.

    Attributes:
        interface: the one that the ranks' traffic leaves by, and `chosen_by`: what decided it.
        loopback: the loopback address that the machine's own name means, if it does.
        missing: an interface that a variable names and this node has not.
    """

    interfaces: tuple[Interface, ...] = ()
    infiniband: tuple[InfinibandPort, ...] = ()
    interface: str = ""
    address: str = ""
    chosen_by: str = ""
    loopback: str = ""
    missing: str = ""


class Amount(_Facts):
    """What may be used of what the machine has, and what limits it."""

    amount: int
    machine: int
    reason: str


class LimitFacts(_Facts):
    """ulimits are of a rank; UNLIMITED (-1) is no limit. Sizes in bytes; None: there is no /dev/shm."""

    nofile: int
    nofile_hard: int
    memlock: int
    nproc: int
    cores: Amount
    memory: Amount
    shm_total: int | None = None
    shm_free: int | None = None


class DiskFacts(_Facts):
    """A file system: room for this user, and how long a small file takes.

    Attributes:
        what: the run directory, or temporary files.
        write_s: median of write, fsync, close and rename; None: it cannot be written, see `problem`.
        locks: whether flock works.
    """

    what: Literal["run directory", "temporary files"]
    path: str
    kind: str = ""
    free: int = 0
    total: int = 0
    free_files: int | None = None
    write_s: float | None = None
    locks: bool | None = None
    problem: str = ""


class NodeFacts(_Facts):
    """What a node says of itself.

    Attributes:
        versions: name -> version, as text: torch, Python, NCCL, driver, …
        gpus: those that the ranks see.
        no_gpu_because: why there are none.
        port: where the others reach the node's listener, at `network.address`.
    """

    node: int
    host: str
    versions: dict[str, str] = {}
    gpus: tuple[GpuFacts, ...] = ()
    no_gpu_because: str = ""
    unusable_gpus: tuple[str, ...] = ()
    network: NetworkFacts = NetworkFacts()
    limits: LimitFacts | None = None
    disks: tuple[DiskFacts, ...] = ()
    port: int = 0
    problems: tuple[str, ...] = ()


class PeerFacts(_Facts):
    """A connection from `node` to `peer` by plain TCP.

    Attributes:
        problem: why it failed; empty where it did not.
        round_trip_s: the shortest of several.
        clock_ahead_s: how far the peer's clock is ahead of the node's, give or take half the round trip.
    """

    node: int
    peer: int
    address: str = ""
    problem: str = ""
    round_trip_s: float | None = None
    clock_ahead_s: float | None = None


class SharedFileFacts(_Facts):
    """What `node` sees of a file that node 0 writes, counted from node 0's word that it has closed it.

    Attributes:
        new_s: until a new file was seen; None: not within the bound.
        rewritten_s: until another open read what a rewrite had put in its place; None: not within the bound.
        stale: whether the first open after the rewrite still read the old content.
    """

    node: int
    new_s: float | None = None
    rewritten_s: float | None = None
    stale: bool = False
    problem: str = ""


class LinkSpeed(_Facts):
    """Bytes per second from one rank to another, one way."""

    backend: str
    ranks: tuple[int, int]
    nodes: tuple[int, int]
    rate: float


class AllReduceSpeed(_Facts):
    """An all-reduce over all ranks.

    Attributes:
        seconds: the median of several.
        wrong: what the result was, and should have been; empty where it is right.
    """

    backend: str
    ranks: int
    size: int
    seconds: float
    wrong: str = ""

    @property
    def bus_rate(self) -> float:
        """Bytes per second over each link, as nccl-tests counts them (busbw)."""
        return 2 * (self.ranks - 1) / self.ranks * self.size / self.seconds


class JobFacts(_Facts):
    """The size of the doctor's job."""

    nodes: int
    procs: int
    device: str
    launcher: str = ""


class JobEnd(_Facts):
    """How the job ended, where it ended badly; `node` is that of the rank which failed first."""

    code: int
    message: str = ""
    hint: str = ""
    node: int | None = None


class Facts(_Facts):
    """All that was gathered; a job that ended early has gathered less."""

    job: JobFacts
    nodes: tuple[NodeFacts, ...] = ()
    peers: tuple[PeerFacts, ...] = ()
    shared_files: tuple[SharedFileFacts, ...] = ()
    links: tuple[LinkSpeed, ...] = ()
    all_reduces: tuple[AllReduceSpeed, ...] = ()
    end: JobEnd | None = None

    def node(self, number: int) -> NodeFacts | None:
        """The node's facts; None where it has said nothing."""
        return next((node for node in self.nodes if node.node == number), None)

    @property
    def machines(self) -> int:
        """How many machines the nodes are: simulated nodes share one."""
        return len({node.host for node in self.nodes})
