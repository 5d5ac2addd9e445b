"""Store on Redis or Valkey."""
