"""The browser that the tests drive: the system's Chromium, installed if possible."""

from functools import partial

from tests.support import debian

_CHROMIUM = ("chromium", "chromium", "chromium-browser", "google-chrome")  # the package, then the programs
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
find = partial(debian.find, *_CHROMIUM)
path_or_skip = partial(debian.path_or_skip, *_CHROMIUM)
