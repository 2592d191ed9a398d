"""The bill of materials: each jar of the lock is in it, beside what was there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from app.local.jars import Jar, read_lock
from app.local.sbom import add_jars, main


def test_each_jar_is_a_component_once() -> None:
    """Name, version and hash are those of the lock; what was in the bill stays."""
    jar = Jar("kafka", "org.lz4:lz4-java:1.8.0", 5, "a" * 64)
    own = {"type": "library", "name": "aiokafka"}
    found = add_jars({"bomFormat": "CycloneDX", "components": [own]}, [jar, Jar("spark", *jar_fields(jar))])
    assert found == {
        "bomFormat": "CycloneDX",
        "components": [
            own,
            {
                "type": "library",
                "bom-ref": "pkg:maven/org.lz4/lz4-java@1.8.0",
                "group": "org.lz4",
                "name": "lz4-java",
                "version": "1.8.0",
                "purl": "pkg:maven/org.lz4/lz4-java@1.8.0",
                "hashes": [{"alg": "SHA-256", "content": "a" * 64}],
            },
        ],
    }


def jar_fields(jar: Jar) -> tuple[str, int, str]:
    """All but the set."""
    return jar.coordinates, jar.size, jar.sha256


def test_file_is_changed_in_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command adds all jars of the lock, and says how many components there are."""
    path = tmp_path / "sbom.json"
    path.write_text('{"bomFormat": "CycloneDX"}')
    assert main([str(path)]) == 0
    found = json.loads(path.read_text())["components"]
    assert {each["hashes"][0]["content"] for each in found} == {jar.sha256 for jar in read_lock()}
    assert capsys.readouterr().out == f"{path}: {len(found)} components\n"
