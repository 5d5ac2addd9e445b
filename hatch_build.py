"""Build hook of the package: its URLs, and the README as a package index shows it.

The address of the repository is that of git's remote `origin`, since no file here knows it. A build without git or
without such a remote has no URLs, and its README has no links to files. The environment of a CI is not asked: it names
the repository of the workflow, which may be that of a project that only installs this one.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK_TO_FILE = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:|#)([^)]*)\)")


class BuildHook(MetadataHookInterface):
    """Sets the dynamic fields of pyproject.toml."""

    def update(self, metadata: dict[str, Any]) -> None:
        root = Path(self.root)
        readme = (root / "README.md").read_text("utf-8")
        metadata["urls"] = {}
        if address := web_address(_git(root, "config", "--get", "remote.origin.url")):
            tag = f"v{metadata['version']}"
            version = _git(root, "tag", "--points-at", "HEAD", "--list", tag) or "main"
            files = f"{address}/blob/{version}"  # GitHub's paths, which GitLab redirects to its own
            site = os.environ.get("DOCS_SITE_URL")
            metadata["urls"] = {
                "Homepage": site or address,
                "Documentation": site or f"{files}/README.md#read-on",
                "Source": address,
                "Issues": f"{address}/issues",
                "Changelog": f"{files}/CHANGELOG.md",
            }
            pictures = f"{address}/raw/{version}"
            readme = LINK_TO_FILE.sub(lambda at: f"{at[1]}[{at[2]}]({pictures if at[1] else files}/{at[3]})", readme)
        else:
            readme = (
                readme.partition("## Read on")[0] + "The source archive has the documentation in its folder `docs`.\n"
            )
            readme = LINK_TO_FILE.sub(r"\2", re.sub(r"!\[[^\]]*\]\((?!https?:)[^)]*\)\n*", "", readme))
        metadata["readme"] = {"content-type": "text/markdown", "text": readme}


def web_address(remote: str) -> str | None:
    """Return the address of a remote for browsers, without its credentials. None for a folder or a host alias."""
    parts = urlsplit(re.sub(r"^([\w.-]+@[\w.-]+):/?(?!/)", r"ssh://\1/", remote))
    if parts.scheme not in {"https", "ssh"} or "." not in (parts.hostname or ""):
        return None
    port = f":{parts.port}" if parts.scheme == "https" and parts.port else ""
    return f"https://{parts.hostname}{port}/{parts.path.strip('/').removesuffix('.git')}"


def _git(root: Path, *question: str) -> str:
    """Return the answer of git, or nothing. The folder of an sdist is not asked: it may be in another repository."""
    if not (root / ".git").exists():
        return ""
    try:
        return subprocess.run(["git", *question], cwd=root, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:  # git is not installed
        return ""
