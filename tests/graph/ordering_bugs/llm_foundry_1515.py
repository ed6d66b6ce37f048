"""mosaicml/llm-foundry#1515: an exporter ahead of the saver is slow, and what it does to the weights is saved."""

from __future__ import annotations

from typing import Any

import torch


class Exports:
    """Exports the model in half the precision: casts it in place, writes it, and casts it back."""

    def after_val(self, run: Any) -> None:
        run.model.bfloat16()
        torch.save(run.model.state_dict(), run.dir / f"export-{run.epoch}.pt")
        run.model.float()
