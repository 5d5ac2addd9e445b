"""Tests through HTTP, on a real server process and a real store; the only stand-in is the scripted model."""
