"""Export and import of a conversation as JSON without any pickle (docs/export.md)."""
