"""All that knows HTTP."""
