"""Hooks of the site (`mkdocs.yml`): files outside `docs/` that pages link to, and a search without a web server."""

from __future__ import annotations

import os
import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]

_LINK = re.compile(r"(?<=\]\()((?!https?:|#)[^)#\s]+)")
_OUTSIDE = re.compile(r"(?<=\]\()\.\./([^)#\s]+)")
_PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
_FILES = "files"
# Browsers do not load a web worker from a file. `npm pack iframe-worker` fetches this shim, by the author of Material.
_SHIM_URL = "https://unpkg.com/iframe-worker/shim"
_SHIM = "assets/javascripts/iframe-worker.js"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages of the repository's root, and each file outside `docs/` that a page links to."""
    above = set(_PAGES.values())
    for name, uri in _PAGES.items():
        files.append(File.generated(config, uri, abs_src_path=str(ROOT / name)))
    pages = [(_OUTSIDE, page.content_string) for page in files.documentation_pages() if page.src_uri not in above]
    pages += [(_LINK, (ROOT / name).read_text(encoding="utf-8")) for name in _PAGES]
    linked = {
        found
        for pattern, text in pages
        for found in pattern.findall(text)
        if found not in _PAGES and not found.startswith("docs/") and (ROOT / found).is_file()
    }
    for found in sorted(linked):
        files.append(File.generated(config, f"{_FILES}/{found}.txt", content=(ROOT / found).read_bytes()))
    if shim := os.environ.get("WIDELOAD_SHIM"):
        files.append(File.generated(config, _SHIM, content=Path(shim).read_bytes()))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Points links to files outside `docs/` at the copies that `on_files` has added."""
    if page.file.src_uri not in _PAGES.values():
        return _OUTSIDE.sub(lambda found: _PAGES.get(found[1], f"{_FILES}/{found[1]}.txt"), markdown)
    return _LINK.sub(lambda found: _from_above(found[1]), markdown)


def _from_above(link: str) -> str:
    """The target of a link in a page of the repository's root, seen from the site's root."""
    if link.startswith("docs/"):
        return link.removeprefix("docs/")
    return _PAGES.get(link, f"{_FILES}/{link}.txt")


def on_post_template(output_content: str, **_: object) -> str:
    """Removes the shim from pages without a URL, such as the 404 page."""
    return output_content.replace(f'<script src="{_SHIM_URL}"></script>', "")


def on_post_page(output: str, page: Page, **_: object) -> str:
    """Loads the shim from the site itself, or removes it: the site sends no requests to other hosts."""
    if not os.environ.get("WIDELOAD_SHIM"):
        return output.replace(f'<script src="{_SHIM_URL}"></script>', "")
    return output.replace(_SHIM_URL, posixpath.relpath(_SHIM, posixpath.dirname(page.url)))
