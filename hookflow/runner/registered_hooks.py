"""The bindings that PyTorch itself calls, beside those inside the network: registered for a run, and removed again."""

from __future__ import annotations

from contextlib import ExitStack

from hookflow.runner.comm_hooks import attach_to_ddp
from hookflow.runner.engine import Engine
from hookflow.runner.global_hooks import attach_globally
from hookflow.runner.optimizer_hooks import attach_to_optimizers
from hookflow.runner.parameter_hooks import attach_to_parameters
from hookflow.runner.parts import Parts
from hookflow.runner.state import RunState
from hookflow.runner.state_dict_hooks import attach_to_states


def register_hooks(parts: Parts, engine: Engine, state: RunState) -> ExitStack:
    """Register them in the plan's order; close what is returned to take them off. Where one fails, none stays."""
    with ExitStack() as registered:
        for handles in (
            attach_to_parameters(parts.model, engine, state),
            attach_globally(parts.model, engine, state, compiled=bool(parts.section.compile)),
            attach_to_optimizers(parts.optimizers, engine, state),
            attach_to_states(parts.picked, engine, state),
        ):
            for handle in handles:
                registered.callback(handle.remove)
        attach_to_ddp(parts.models, parts.strategy, engine, state)
        return registered.pop_all()
