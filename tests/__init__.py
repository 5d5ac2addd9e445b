"""Tests through HTTP, on a real server process and a real store. Only the model is scripted."""

import sys

# jsonschema would build the 38 parsers of this package, which comes with Jupyter: two seconds in each process.
sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]
