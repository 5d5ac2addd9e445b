"""Schemas of the HTTP interface: bodies, answers, events and problems. The service and its clients share them."""
