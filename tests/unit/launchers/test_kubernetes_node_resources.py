"""Resources of a pod: --mem as on Slurm, /dev/shm within it, defaults for all limits."""

from __future__ import annotations

import pytest
from kubernetes_plans import KINDS, container, options_with, pod
from slurm_stand_ins import Job

from dist_train.errors import ConfigError
from launchers._kubernetes.manifest.node_resources import assumed_defaults, node_resources
from launchers._kubernetes.manifest.quantities import is_quantity, mebibytes, mem_mebibytes, memory


@pytest.mark.parametrize(
    ("text", "mib"),
    [
        ("64G", 65536),
        ("64g", 65536),
        ("64Gi", 65536),
        ("64GiB", 65536),
        ("64GB", 65536),
        ("1.5T", 1572864),
        ("1500M", 1500),
        ("1500", 1500),
        ("1K", 1),
    ],
)
def test_mem_is_that_of_slurm(text: str, mib: int) -> None:
    assert mem_mebibytes(text) == mib


@pytest.mark.parametrize("text", ["", "G", "64X", "-1G", "0", "64 G", "1e3"])
def test_invalid_mem(text: str) -> None:
    with pytest.raises(ValueError, match="is not an amount of memory such as 64G"):
        mem_mebibytes(text)


@pytest.mark.parametrize(
    ("quantity", "mib"),
    [("1Gi", 1024), ("1G", 954), ("1048576", 1), ("1048577", 2), ("1k", 1), ("2.5Ti", 2621440)],
)
def test_quantities_of_memory(quantity: str, mib: int) -> None:
    assert mebibytes(quantity) == mib


def test_which_texts_are_quantities() -> None:
    assert all(map(is_quantity, ("1", "500m", "1.5Gi", "2k", "3E")))
    assert not any(map(is_quantity, ("", "Gi", "1GB", "1 Gi", "-1", "one", "1gi")))


def test_memory_is_written_short() -> None:
    assert (memory(65536), memory(1536)) == ("64Gi", "1536Mi")


@pytest.mark.parametrize(
    ("changes", "cpus", "mem", "shm", "gpus", "disk"),
    [
        ({"device": "cpu"}, 2, 4096, 1024, 0, "4Gi"),
        ({"device": "cpu", "threads_per_rank": 3}, 6, 4096, 1024, 0, "4Gi"),
        ({"device": "cuda"}, 4, 16384, 4096, 2, "16Gi"),
        ({"device": "cuda", "procs_per_node": 8}, 16, 65536, 8192, 8, "16Gi"),
        ({"device": "cuda", "resources": (("cpus_per_gpu", "12"),)}, 24, 16384, 4096, 2, "16Gi"),
        ({"device": "cuda", "resources": (("mem", "1000M"),)}, 4, 1000, 250, 2, "16Gi"),
        ({"device": "cuda", "resources": (("mem", "64G"),)}, 4, 65536, 8192, 2, "16Gi"),
    ],
)
def test_a_node(
    job: Job, changes: dict[str, object], cpus: int, mem: int, shm: int, gpus: int, disk: str
) -> None:
    size = node_resources(job(**changes), options_with())
    found = (size.cpus, size.mem_mib, size.shm_mib, size.gpus, size.disk)
    assert found == (cpus, mem, shm, gpus, disk)


def test_shared_memory_is_a_part_of_mem(job: Job) -> None:
    size = node_resources(job(resources=(("mem", "64G"),)), options_with(shm="32Gi"))
    assert (size.mem_mib, size.shm_mib) == (65536, 32768)
    with pytest.raises(ConfigError, match="--shm 8Gi leaves 0 MiB of 8Gi for the processes") as caught:
        node_resources(job(resources=(("mem", "8G"),)), options_with(shm="8Gi"))
    assert caught.value.hint == "--mem 10G, or a smaller --shm"


def test_given_shared_memory_is_added_to_the_default(job: Job) -> None:
    size = node_resources(job(), options_with(shm="16Gi"))
    assert (size.mem_mib, size.shm_mib) == (4096 + 16384, 16384)


def test_too_little_memory_is_refused(job: Job) -> None:
    with pytest.raises(ConfigError, match="--shm 128Mi leaves 384 MiB of 512Mi"):
        node_resources(job(resources=(("mem", "512M"),)), options_with())
    with pytest.raises(ConfigError, match=r"--mem lots: 'lots' is not an amount"):
        node_resources(job(resources=(("mem", "lots"),)), options_with())


def test_assumed_defaults(job: Job) -> None:
    assert assumed_defaults(job()) == ["2 cores (--cpus-per-gpu)", "4Gi memory (--mem)"]
    assert assumed_defaults(job(resources=(("mem", "1G"), ("cpus_per_gpu", "1")))) == []


def test_the_pod_requests_all_of_it(job: Job) -> None:
    spec = job(device="cuda", resources=(("mem", "64G"), ("cpus_per_gpu", "8")))
    others = ("rdma/ib=1", "hugepages-2Mi=5Gi", "ephemeral-storage=50Gi")
    amounts = {
        "cpu": "16",
        "memory": "64Gi",
        "nvidia.com/gpu": "2",
        "ephemeral-storage": "50Gi",
        "rdma/ib": "1",
        "hugepages-2Mi": "5Gi",
    }
    assert container(spec, resource=others)["resources"] == {"requests": amounts, "limits": amounts}
    volumes = {volume["name"]: volume for volume in pod(spec, resource=others)["volumes"]}
    assert volumes["dshm"]["emptyDir"] == {"medium": "Memory", "sizeLimit": "8Gi"}
    assert volumes["tmp"]["emptyDir"] == {"sizeLimit": "50Gi"}


def test_a_first_try_on_cpu_fits_a_small_cluster(job: Job) -> None:
    found = container(job())["resources"]
    assert found["requests"] == {"cpu": "500m", "memory": "2Gi", "ephemeral-storage": "1Gi"}
    assert found["limits"] == {"cpu": "2", "memory": "4Gi", "ephemeral-storage": "4Gi"}


def test_with_kueue_no_disk_is_requested_unless_given(job: Job) -> None:
    """A ClusterQueue that does not cover every requested resource never admits the job."""
    for spec in (job(), job(device="cuda")):
        found = container(spec, queue="gold")["resources"]
        assert "ephemeral-storage" not in {**found["requests"], **found["limits"]}
    given = container(job(), queue="gold", resource=("ephemeral-storage=2Gi",))["resources"]
    assert given["requests"]["ephemeral-storage"] == given["limits"]["ephemeral-storage"] == "2Gi"
    volcano = container(job(), queue="gold", kind="volcano")["resources"]
    assert volcano["limits"]["ephemeral-storage"] == "4Gi", "the queue of --kind volcano is not Kueue's"


@pytest.mark.parametrize("queue", [None, "gold"])
def test_disk_can_be_left_out(job: Job, queue: str | None) -> None:
    given: dict[str, object] = {"queue": queue, "resource": ("ephemeral-storage=none", "rdma/ib=1")}
    found = container(job(), **given)["resources"]
    assert "ephemeral-storage" not in {**found["requests"], **found["limits"]}
    assert found["limits"]["rdma/ib"] == "1"
    volumes = {volume["name"]: volume for volume in pod(job(), **given)["volumes"]}
    assert volumes["tmp"]["emptyDir"] == {"sizeLimit": "4Gi"}, "one run does not fill the machine's disk"


def test_given_amounts_are_requested_whole(job: Job) -> None:
    spec = job(resources=(("mem", "3G"), ("cpus_per_gpu", "2")))
    found = container(spec, resource=("ephemeral-storage=2Gi",))["resources"]
    assert found["requests"] == found["limits"]
    assert found["requests"] == {"cpu": "4", "memory": "3Gi", "ephemeral-storage": "2Gi"}
    with_shm = container(job(), shm="1Gi")["resources"]
    assert with_shm["requests"]["memory"] == with_shm["limits"]["memory"] == "5Gi"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("name", "taint"),
    [("amd.com/gpu", "amd.com/gpu"), ("nvidia.com/mig-1g.5gb", "nvidia.com/gpu")],
)
def test_gpus_of_another_name(job: Job, kind: str, name: str, taint: str) -> None:
    """One for each rank, in place of nvidia.com/gpu."""
    spec = job(nodes=2, procs_per_node=4, device="cuda")
    [agent] = (found := pod(spec, kind=kind, gpu_resource=name))["containers"]
    for amounts in agent["resources"].values():
        assert (amounts[name], amounts.get("nvidia.com/gpu")) == ("4", None)
    assert found["tolerations"][0] == {"key": taint, "operator": "Exists"}


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("name", ["amd.com/gpu", "nvidia.com/mig-1g.5gb", "gpu.intel.com/i915", "acme.com/x"])
def test_gpus_besides_those_of_the_ranks_are_refused(job: Job, device: str, name: str) -> None:
    given = {"resource": (f"{name}=8",), **({"gpu_resource": name} if name == "acme.com/x" else {})}
    with pytest.raises(ConfigError, match=f"--resource {name}=8 asks for GPUs") as caught:
        pod(job(procs_per_node=4, device=device), **given)
    assert f"--gpu-resource {name} --gpus-per-node 8" in str(caught.value.hint)


@pytest.mark.parametrize("name", ["gpu", "kubernetes.io/batch", "amd.com/", "a b"])
def test_a_gpu_resource_of_another_form_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="gpu_resource"):
        options_with(gpu_resource=name)
