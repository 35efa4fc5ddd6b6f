"""GPUs and other generic resources of a job (GRES): what the site has beside GPUs is asked for with them."""

from __future__ import annotations

from dist_train.jobs import JobSpec
from launchers._slurm.slurm_options import Options


def requested_resources(spec: JobSpec, options: Options) -> dict[str, str]:
    """The options of sbatch for GPUs and for `--sbatch-arg gres=…`: where both are a --gres, they are one."""
    others = options.sbatch_arguments.get("gres")
    found = [] if others is None else [str(others)]
    if spec.device == "cpu" or options.gpu_request == "none":
        return {"gres": found[0]} if found else {}
    kind = f"{options.gpu_type}:" if options.gpu_type else ""
    count = f"{kind}{spec.procs_per_node}"
    if options.gpu_request == "gres":
        return {"gres": ",".join([f"gpu:{count}", *found])}
    return {"gpus_per_node": count, **({"gres": found[0]} if found else {})}
