"""Processes that run model-written code, one for each running session, and the variables that outlive them."""
