"""Builds the site of the docs, strictly: a link without a target is an error.

python tools/site.py [FOLDER]   (default: a temporary folder, for the check alone)

The built site needs no other host: the script that draws diagrams is fetched once, by version and hash (MERMAID).
The Markdown files stay readable on a forge, so they link to files outside of `docs`. Such files become pages of
the site (PAGES). Others are linked in the repository if its address is known (hatch_build.py), else the link becomes
plain text. A link to a file that does not exist is refused either way.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
CONFIG = ROOT / "zensical.toml"
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "reporting.md",  # docs/security.md is another page
}
MERMAID = "mermaid@12.3.0"
MERMAID_SHA256 = "be0684e8d20bfc874df12c0f04927a5c482f57f2200eec54cca52a4583fd4040"
MERMAID_ADDRESS = '"https://unpkg.com/mermaid@12/dist/mermaid.min.js"'  # in the scripts of the site
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?!\w+:|#)([^)\s#]+)(#[^)\s]*)?\)")
FENCE = re.compile(r"(^ *(?:```+|~~~+).*?^ *(?:```+|~~~+) *$)", re.MULTILINE | re.DOTALL)


class BrokenDocsError(Exception):
    """The docs have a broken link, or the navigation lacks a page."""


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        try:
            site = build(Path(folder))
        except BrokenDocsError as error:
            sys.exit(str(error))
        if sys.argv[1:]:
            _add_mermaid(site, Path(folder))
            shutil.rmtree(sys.argv[1], ignore_errors=True)
            shutil.copytree(site, sys.argv[1])
            sys.stdout.write(f"{sys.argv[1]}: open it with `python -m http.server -d {sys.argv[1]}`\n")


def build(folder: Path) -> Path:
    """Build the site in a folder and return the folder of its pages. Raises `BrokenDocsError`."""
    urls = _urls()
    shutil.copytree(DOCS, folder / "docs", ignore=lambda _, names: [name for name in names if name.endswith(".md")])
    for source, name in _sources():
        page = folder / "docs" / name
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(_with_links_of_the_site(source, urls), "utf-8")
    _check_navigation({name for _, name in _sources()})
    text = CONFIG.read_text("utf-8")
    if urls:
        home = "" if urls["Homepage"] == urls["Source"] else urls["Homepage"]
        known = f'site_url = "{home}"\nrepo_url = "{urls["Source"]}"\nedit_uri = "edit/main/docs"'
        text = text.replace('site_url = ""', known)
    (folder / CONFIG.name).write_text(text, "utf-8")
    command = [str(Path(sys.executable).parent / "zensical"), "build", "--strict"]
    built = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=120)
    if built.returncode:
        raise BrokenDocsError(re.sub(r"\x1b\[[\d;]*m", "", built.stdout + built.stderr))
    for file in (folder / "site").rglob("*.html"):
        # As a component, the link to the repository would ask its forge for stars, from each reader's browser.
        text = file.read_text("utf-8").replace(' data-md-component="source"', "")
        for path, name in PAGES.items():
            text = text.replace(f'/edit/main/docs/{name}"', f'/edit/main/{path}"')
        file.write_text(text, "utf-8")
    (folder / "site" / "llms.txt").write_text(_llms(), "utf-8")
    for source, _ in _sources():  # llms.txt links to the Markdown
        copy = folder / "site" / source.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, copy)
    return folder / "site"


def _urls() -> dict[str, str]:
    """Return the URLs of the package, which has none if git knows no address of the repository."""
    ask = [sys.executable, "-m", "hatchling", "metadata", "urls"]
    found: dict[str, str] = json.loads(
        subprocess.run(ask, cwd=ROOT, capture_output=True, check=True, timeout=60).stdout
    )
    return found


def _llms() -> str:
    """Return llms.txt: each page of the navigation with its first sentence, for readers that are programs."""
    files = {name: source for source, name in _sources()}
    lines = ["# smolsessions", "", f"> {_first_sentence(files['index.md'])}"]
    for section in _navigation()[1:]:
        ((title, entries),) = section.items()
        lines += ["", f"## {title}", ""]
        for name in _names(entries):
            heading = files[name].read_text("utf-8").partition("\n")[0].lstrip("# ")
            lines.append(f"- [{heading}]({files[name].relative_to(ROOT)}): {_first_sentence(files[name])}")
    return "\n".join(lines) + "\n"


def _first_sentence(page: Path) -> str:
    """Return the first sentence of a page's prose, without links."""
    text = FENCE.sub("", re.sub("<!--.*?-->", "", page.read_text("utf-8"), flags=re.DOTALL))
    paragraphs = (" ".join(each.split()) for each in text.split("\n\n"))
    prose = next((each for each in paragraphs if each and not each.startswith(("#", "|", "!", ">", "-"))), "")
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", re.split(r"(?<=\.)\s", prose)[0])


def _navigation() -> list[Any]:
    found: list[Any] = tomllib.loads(CONFIG.read_text("utf-8"))["project"]["nav"]
    return found


def _add_mermaid(site: Path, folder: Path) -> None:
    """Fetch the script that draws diagrams, and have the site load it from itself."""
    command = ["npm", "pack", "--silent", "--pack-destination", str(folder), MERMAID]
    subprocess.run(command, cwd=folder, check=True, timeout=120)
    archive = folder / f"{MERMAID.replace('@', '-')}.tgz"
    if hashlib.sha256(archive.read_bytes()).hexdigest() != MERMAID_SHA256:
        sys.exit(f"{MERMAID} has another hash than MERMAID_SHA256")
    (bundle,) = (site / "assets" / "javascripts").glob("bundle.*.js")
    script = bundle.read_text("utf-8")
    if MERMAID_ADDRESS not in script:
        sys.exit(f"the site's script does not load {MERMAID_ADDRESS} any more: change MERMAID_ADDRESS")
    beside = 'new URL("mermaid.min.js",document.querySelector("script[src*=bundle]").src).href'
    bundle.write_text(script.replace(MERMAID_ADDRESS, beside), "utf-8")
    with tarfile.open(archive) as packed:
        (bundle.parent / "mermaid.min.js").write_bytes(packed.extractfile("package/dist/mermaid.min.js").read())  # type: ignore[union-attr]


def _sources() -> Iterator[tuple[Path, str]]:
    """Yield each Markdown file with its path in the site."""
    for path, name in PAGES.items():
        yield ROOT / path, name
    for page in sorted(DOCS.rglob("*.md")):
        yield page, str(page.relative_to(DOCS))


def _with_links_of_the_site(source: Path, urls: dict[str, str]) -> str:
    parts = FENCE.split(source.read_text("utf-8"))
    parts[::2] = [LINK.sub(lambda found: _link(found, source, urls), part) for part in parts[::2]]
    return "".join(parts)


def _link(found: re.Match[str], source: Path, urls: dict[str, str]) -> str:
    sign, text, path, anchor = found.groups()
    target = Path(os.path.normpath(source.parent / path))
    if not target.exists():
        raise BrokenDocsError(f"{source.relative_to(ROOT)}: {found[0]} leads to no file")
    file = target / "README.md" if target.is_dir() else target
    if not (page := _page(file)):
        files = urls.get("Changelog", "").removesuffix("/CHANGELOG.md")
        return f"[{text}]({files}/{target.relative_to(ROOT)}{anchor or ''})" if files else str(text)
    here = Path(_page(source) or "").parent
    return f"{sign}[{text}]({os.path.relpath(page, here)}{anchor or ''})"


def _page(file: Path) -> str | None:
    """Return the path of a file in the site, or None for a file that it does not have."""
    if file.is_relative_to(DOCS):
        return str(file.relative_to(DOCS))
    return PAGES.get(str(file.relative_to(ROOT)))


def _check_navigation(pages: set[str]) -> None:
    named = set(_names(_navigation()))
    if named != pages:
        raise BrokenDocsError(f"nav of zensical.toml: add {sorted(pages - named)}, remove {sorted(named - pages)}")


def _names(entry: Any) -> Iterator[str]:
    if isinstance(entry, str):
        yield entry
    else:
        for each in entry.values() if isinstance(entry, dict) else entry:
            yield from _names(each)


if __name__ == "__main__":
    main()
