"""Models of agents.toml."""
