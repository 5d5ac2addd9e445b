"""All that knows Redis, or Valkey: the same protocol."""
