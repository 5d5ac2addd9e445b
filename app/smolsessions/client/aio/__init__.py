"""Asynchronous client. `tools/sync_client.py` derives the synchronous one from it."""
