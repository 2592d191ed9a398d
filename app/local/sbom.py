"""Adds the locked jars to a bill of materials of the Python packages, in place; `make sbom` makes both.

The format is CycloneDX 1.6 in JSON. A jar is a component with its package URL (`pkg:maven/…`) and the SHA-256 of the
lock, with which each jar is checked before it is used.

    python -m app.local.sbom FILE
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from app.local.jars import Jar, read_lock


def add_jars(bom: Mapping[str, Any], jars: Sequence[Jar]) -> dict[str, Any]:
    """The bill with a component for each jar; one that several sets have is there once."""
    components = {jar.coordinates: _component(jar) for jar in jars}
    return {**bom, "components": [*bom.get("components", []), *components.values()]}


def _component(jar: Jar) -> dict[str, object]:
    group, name, version = jar.coordinates.split(":")
    purl = f"pkg:maven/{group}/{name}@{version}"
    return {
        "type": "library",
        "bom-ref": purl,
        "group": group,
        "name": name,
        "version": version,
        "purl": purl,
        "hashes": [{"alg": "SHA-256", "content": jar.sha256}],
    }


def main(arguments: Sequence[str]) -> int:
    """Changes the file."""
    (name,) = arguments
    path = Path(name)
    found = add_jars(json.loads(path.read_text(encoding="utf-8")), read_lock())
    path.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    print(f"{path}: {len(found['components']):,} components")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
