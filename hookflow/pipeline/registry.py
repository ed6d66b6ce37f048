"""Short names for what is no hook; those of hooks stand in `hookflow.hooks.registry`."""

from __future__ import annotations

DATA: dict[str, str] = {
    "cifar10": "hookflow.zoo.cifar10:cifar10",
    "circle": "hookflow.zoo.circle:Circle",
}
"""Data sources."""
