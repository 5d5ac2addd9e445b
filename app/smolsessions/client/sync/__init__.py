"""Synchronous client, derived from the asynchronous one by `tools/sync_client.py`. Change that one."""
