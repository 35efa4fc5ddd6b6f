"""Operators that an administrator may install: their controllers and webhooks, by name.

What each emulates and what it does not is said at the top of its module.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from k8s_controllers import Sync
from k8s_jobset_admission import admit_job_set
from k8s_jobsets import JobSetController
from k8s_store import Admit, Store
from k8s_trainjob_admission import admit_train_job
from k8s_trainjobs import TrainJobController
from k8s_volcano import VolcanoController
from k8s_volcano_scheduler import VolcanoScheduler, admit_vcjob, make_queue


@dataclass
class Operators:
    """Those of one cluster, at work once they are installed.

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

    def begin(self, operator: str) -> Sequence[Sync]:
        """Its webhooks from now on; returns what is to look at the store after each change."""
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
