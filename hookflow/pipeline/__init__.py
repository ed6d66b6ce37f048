"""From a TOML file to a validated `Pipeline`. Imports neither torch nor textual."""
