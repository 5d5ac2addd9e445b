"""smolsessions: stateful smolagents conversations behind HTTP."""

__version__ = "0.1.0"
