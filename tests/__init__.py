"""Tests through HTTP, on a real server process and a real store. Only the model is scripted."""
