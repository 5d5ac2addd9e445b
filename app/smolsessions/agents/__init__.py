"""All that knows smolagents."""
