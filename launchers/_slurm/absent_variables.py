"""Variables of this shell that a local run would have and the job will not, named before it is submitted.

sbatch gets few variables (`slurm_client`), so that no token of a login shell ends in Slurm's records. What
libraries look for, as caches, proxies and offline switches, is then missing without a word.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from dist_train.jobs import JobSpec
from launchers._slurm.slurm_client import is_kept

_NEEDED = re.compile(
    r"(https?|ftp|all|no)_proxy|TMPDIR|(SSL_CERT|REQUESTS_CA|CURL_CA)_\w+|XDG_(CACHE|DATA|CONFIG)_HOME|"
    r"(HF|HUGGINGFACE|TRANSFORMERS|DATASETS|DIFFUSERS|TORCH|PYTORCH|TORCHINDUCTOR|TRITON|CUDA|CUDNN|CUBLAS|"
    r"HIP|HSA|ROCR|MIOPEN|RCCL|TOKENIZERS|WANDB|MLFLOW|NLTK|AWS|GOOGLE|AZURE|FSSPEC|TFDS|JAX|XLA|NVTE|"
    r"DEEPSPEED|MPICH|OMPI|PMIX|MKL|OPENBLAS|KMP|GOMP|MALLOC)_\w+|HF_\w+",
    re.IGNORECASE,
)
_SECRET = re.compile(r"TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL|API_?KEY|ACCESS_KEY", re.IGNORECASE)
_SHOWN = 8


def absent_variables(spec: JobSpec, environ: Mapping[str, str]) -> list[str]:
    """Names that the run probably needs and will not have, sorted: neither kept, nor of --env or --secret."""
    given = {name for name, _ in spec.env} | set(spec.secrets) | {"CUDA_VISIBLE_DEVICES"}
    return sorted(
        name for name in environ if _NEEDED.fullmatch(name) and not is_kept(name) and name not in given
    )


def absence_notices(spec: JobSpec, environ: Mapping[str, str]) -> tuple[str, ...]:
    """One line for variables and one for secrets, with the options that hand them over."""
    names = absent_variables(spec, environ)
    plain = [name for name in names if not _SECRET.search(name)]
    secret = [name for name in names if _SECRET.search(name)]
    lines = []
    if plain:
        hint = f'--env {plain[0]}="${plain[0]}"'
        lines.append(f"set in this shell and absent from the job: {_listed(plain)}; to have it there: {hint}")
    if secret:
        hint = f"--secret {secret[0]}"
        lines.append(
            f"secrets of this shell, absent from the job: {_listed(secret)}; to have it there: {hint}"
        )
    return tuple(lines)


def _listed(names: list[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
