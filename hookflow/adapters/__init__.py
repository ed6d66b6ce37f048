"""Adapters of other frameworks' hooks: each is found by the registry in
`hookflow.hooks.adapter_registry`.
"""
