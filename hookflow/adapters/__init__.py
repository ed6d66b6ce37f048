"""Adapters of other frameworks' hooks.

Each is found by the registry in `hookflow.hooks.adapter_registry`.
"""
