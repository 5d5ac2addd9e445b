"""What is in a conversation ⇄ JSON that holds no pickle (docs/export.md)."""
