"""The bill of materials: each jar of the lock is in it, beside what was there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from app.local.jars import read_lock
from app.local.sbom import main


def test_each_jar_is_a_component_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command adds the jars of the lock, by name, version and hash; what was in the bill stays."""
    own = {"type": "library", "name": "aiokafka"}
    path = tmp_path / "sbom.json"
    path.write_text(json.dumps({"bomFormat": "CycloneDX", "components": [own]}))
    assert main([str(path)]) == 0
    assert capsys.readouterr().out.startswith(f"{path}: ")
    found = json.loads(path.read_text())
    first, *jars = found["components"]
    assert (found["bomFormat"], first) == ("CycloneDX", own)
    locked = {jar.coordinates: jar.sha256 for jar in read_lock()}
    assert len(jars) == len(locked)
    assert {
        f"{each['group']}:{each['name']}:{each['version']}": each["hashes"][0]["content"] for each in jars
    } == locked
    (snappy,) = (each for each in jars if each["name"] == "snappy-java")
    purl = f"pkg:maven/org.xerial.snappy/snappy-java@{snappy['version']}"
    assert snappy == {
        "type": "library",
        "bom-ref": purl,
        "group": "org.xerial.snappy",
        "name": "snappy-java",
        "version": snappy["version"],
        "purl": purl,
        "hashes": [{"alg": "SHA-256", "content": snappy["hashes"][0]["content"]}],
    }
