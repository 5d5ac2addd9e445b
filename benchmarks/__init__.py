"""Compares the service with others that run the same agent, in one run on one machine."""
