"""The short names of hooks: those built in, and those that installed packages offer by entry points.

A pipeline may also name any class or function by where it stands.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

BUILT_IN: dict[str, str] = {
    "accuracy": "hookflow.hooks.accuracy:Accuracy",
    "activation_checkpoint": "hookflow.hooks.activation_checkpoint:ActivationCheckpoint",
    "checkpoint": "hookflow.hooks.checkpoint:Checkpoint",
    "early_stop": "hookflow.hooks.early_stop:EarlyStop",
    "ema": "hookflow.hooks.ema:EMA",
    "freeze": "hookflow.hooks.freeze:Freeze",
    "grad_clip": "hookflow.hooks.grad_clip:GradClip",
    "log": "hookflow.hooks.log:Log",
    "lr_finder": "hookflow.hooks.lr_finder:LRFinder",
    "lr_schedule": "hookflow.hooks.lr_schedule:LRSchedule",
    "metrics": "hookflow.hooks.metrics:Metrics",
    "param_schedule": "hookflow.hooks.param_schedule:ParamSchedule",
    "precise_bn": "hookflow.hooks.precise_bn:PreciseBN",
    "predict": "hookflow.hooks.predict:Predict",
    "scheduler": "hookflow.hooks.scheduler:Scheduler",
    "swa": "hookflow.hooks.swa:SWA",
    "sync_buffers": "hookflow.hooks.sync_buffers:SyncBuffers",
    "throughput": "hookflow.hooks.throughput:Throughput",
    "tta": "hookflow.hooks.tta:TTA",
    "whiten": "hookflow.zoo.whiten:Whiten",
}

GROUP = "hookflow.hooks"
"""The group of entry points by which a package offers hooks: `clip = "my_package.hooks:Clip"`."""


@dataclass(frozen=True, slots=True)
class Offered:
    """A hook that an installed package offers: its short name, where it stands, and the package with its version."""

    name: str
    use: str
    package: str


@cache
def installed() -> dict[str, tuple[Offered, ...]]:
    """Return what the installed packages offer, by name; nothing of it is imported.

    Several packages may offer one name: then it means none of them. A name that is built in stays so.
    """
    from importlib.metadata import entry_points  # slow, and a pipeline of built-in hooks needs none

    found: dict[str, tuple[Offered, ...]] = {}
    for point in sorted(entry_points(group=GROUP), key=lambda point: (point.name, point.value)):
        package = f"{point.dist.name} {point.dist.version}" if point.dist else "a package"
        offered = Offered(point.name, point.value, package)
        found[point.name] = (*found.get(point.name, ()), offered)
    return found


def short_names(use: str) -> dict[str, str]:
    """Return the short names that `use` may be one of, each with the place that it means."""
    if ":" in use or use in BUILT_IN:
        return BUILT_IN
    return {**{name: offers[0].use for name, offers in installed().items() if len(offers) == 1}, **BUILT_IN}


def rivals(use: str) -> tuple[Offered, ...]:
    """Return the hooks between which a short name does not decide; none where it is plain what it means."""
    offers = () if ":" in use or use in BUILT_IN else installed().get(use, ())
    return offers if len(offers) > 1 else ()
