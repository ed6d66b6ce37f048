"""The hooks: their base class, the registry, and the built-in ones, a file each."""
