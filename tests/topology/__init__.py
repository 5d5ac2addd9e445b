"""Stores of several servers, as operators have them: a cluster, and a primary with replicas that sentinels watch."""
