"""Install operators by name: their controllers and webhooks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cluster.api.store import Admit, Store
from cluster.controllers.manager import Sync
from cluster.operators.jobset_admission import admit_job_set
from cluster.operators.jobsets import JobSetController
from cluster.operators.trainjob_admission import admit_train_job
from cluster.operators.trainjobs import TrainJobController
from cluster.operators.volcano_jobs import VolcanoController
from cluster.operators.volcano_scheduler import VolcanoScheduler, admit_vcjob, make_queue


@dataclass
class Operators:
    """Operators of one cluster, inactive until installed.

    Attributes:
        ttl_scale: ttlSecondsAfterFinished is multiplied by it.
    """

    store: Store
    ttl_scale: float = 1.0

    def __post_init__(self) -> None:
        self.jobsets = JobSetController(self.store, self.ttl_scale)
        self.trainer = TrainJobController(self.store)
        self.volcano = VolcanoController(self.store)
        self.volcano_scheduler = VolcanoScheduler(self.store)

    def install(self, operator: str) -> Sequence[Sync]:
        """Register an operator's webhooks; returns its controllers."""
        admit: Sequence[Admit] = ()
        syncs: Sequence[Sync] = ()
        if operator == "jobset":
            admit, syncs = (admit_job_set,), (self.jobsets.sync,)
        elif operator == "trainer":
            admit, syncs = (admit_train_job(self.store),), (self.trainer.sync,)
        elif operator == "volcano":
            for name in ("root", "default"):
                make_queue(self.store, name)
            admit = (admit_vcjob(self.store),)
            syncs = (self.volcano.sync, self.volcano_scheduler.sync)
        self.store.admission.extend(admit)
        return syncs
