"""The site: it builds without a warning, and asks no other host."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SHIM = "// in place of the one that `make docs-site` fetches\n"


def test_site_builds_and_stands_alone(tmp_path: Path) -> None:
    """Each link leads somewhere, each page is in the navigation, and a browser loads nothing from elsewhere."""
    shim = tmp_path / "shim.js"
    shim.write_text(SHIM)
    site = tmp_path / "site"
    # Not with --quiet: MkDocs counts only the warnings that it shows, and without one the build is not strict.
    command = [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(site)]
    environ = {**os.environ, "WIDELOAD_SHIM": str(shim), "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    pages = list(site.glob("**/*.html"))
    assert len(pages) > 30
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert re.findall(r"<(?:script|img|iframe)[^>]* src=\"?https?:", text) == [], page.name
        assert re.findall(r"<link[^>]* href=\"?https?:[^>]*rel=\"?(?:stylesheet|preload|preconnect)", text) == [], (
            page.name
        )
        assert "unpkg.com" not in text, page.name
    assert (site / "assets" / "javascripts" / "iframe-worker.js").read_text() == SHIM
    api = (site / "python.html").read_text(encoding="utf-8")
    assert 'id="wideload.serializers.LargeMessageSerializer.serialize"' in api
    assert "Raises:" in api
