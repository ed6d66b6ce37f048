"""The hooks: their base class, the registry, and the tables of a pipeline file that name them."""
