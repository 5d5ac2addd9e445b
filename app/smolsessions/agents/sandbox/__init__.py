"""Where model-written code runs: a process of its own for each playing session, and what is kept of its variables."""
