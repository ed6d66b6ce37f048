"""What stands for keys that a log of another version leaves out, so that whoever draws a run can rely on them."""

from __future__ import annotations

from hookflow.events.records import DataInfo, EndFields, Run

UNTOLD_RUN = Run(
    k="run",
    t=0.0,
    it=0,
    ep=0,
    version=0,
    pipeline="",
    pid=0,
    host="",
    python="",
    torch="",
    device="",
    precision="",
    model="",
    params=0,
    seed=0,
    data={},
    limited={},
    max_epochs=0,
    max_iters=0,
    iters_per_epoch=0,
    modes={},
    resumed_from=None,
    rank=0,
    world=1,
    strategy="",
)
UNTOLD_DATA = DataInfo(name="", examples=0, batches=0, batch_size=0, synthetic=False, note="")
UNTOLD_END = EndFields(status="failed", exit=1, reason="", seconds=0.0)
