"""Models of agents.toml: one module per family of providers."""
