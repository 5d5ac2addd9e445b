"""Compares the service with a naive one and with bare `agent.run`, in one run on one machine."""
