"""The tests that hold what docs/security.md says of each attack."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# By the cells of a row of docs/security.md, without the outcome; none where a row says what is not prevented.
TESTS: Mapping[str, Sequence[str]] = {
    "one record with millions of headers": ("tests/integration/test_worker_hostile.py",),
    "bytes that clients parse differently than brokers": ("tests/app/kafka/test_source_batch.py",),
    "invalid offsets, so that other records are skipped": ("tests/app/kafka/test_source_batch.py",),
    "a batch that brokers accept and no client can decode, so that the pipe": (
        "tests/app/kafka/test_fetched.py",
        "tests/integration/test_worker_odd_batches.py",
    ),
    "a compressed batch of KBs that contains gigabytes": ("tests/integration/test_worker_hostile.py",),
    "thousands of compressed batches, so that decompressing them starves th": ("tests/app/pipeline/test_admission.py",),
    "a small record in a raw topic with the headers of a reference, so that": (
        "tests/integration/test_worker_hostile.py",
        "tests/app/pipeline/test_chain.py",
        "tests/jobs/test_offload.py",
    ),
    "a record in a raw topic with the headers of a chunk, so that the next": (
        "tests/integration/test_worker_hostile.py",
        "tests/app/pipeline/test_chain.py",
    ),
    "a timestamp so far from those of other records that their difference o": (
        "tests/transforms/test_batch_merge.py",
        "tests/transforms/test_record_batch.py",
        "tests/jobs/copying/test_writer.py",
    ),
    "with `ingest --schema-registry-url`, a value whose decoding never ends": (
        "tests/jobs/ingesting/test_registered.py",
    ),
    "with `ingest`, an Avro value of five bytes with the length of a gigaby": ("tests/jobs/test_ingest_values.py",),
    "with `ingest`, a decimal such as `1e99999999` in JSON, on which Spark": ("tests/jobs/test_ingest_values.py",),
    "with `ingest --schema-registry-url`, a value or a schema on which a li": ("tests/jobs/ingesting/test_hostile.py",),
    "a value for which a regular expression of its JSON Schema backtracks": ("tests/jobs/ingesting/test_hostile.py",),
    "an Avro decimal of megabytes, which Python converts for minutes": ("tests/jobs/ingesting/test_hostile.py",),
    "thousands of schema ids that the registry does not have": ("tests/jobs/ingesting/test_registered.py",),
    "a schema of some hundred bytes with billions of fields, or whose valid": ("tests/jobs/ingesting/test_hostile.py",),
    "a path outside the root, `..`, another bucket, another host": (
        "tests/stores/test_store_behaviour.py",
        "tests/fuzz",
    ),
    "references that are refused, to delay others while the store is down": (
        "tests/app/pipeline/test_admission.py",
        "tests/app/pipeline/test_dispatch.py",
    ),
    "references that claim a large size without a payload, to use up the bu": (),
    "a payload that decompresses to more than it claims": ("tests/transforms/test_frames.py",),
    "a payload of tiny compressed blocks, which occupies a core for seconds": ("tests/transforms/test_frames.py",),
    "for a job with `-c`: references in another topic of the store, signed": (
        "tests/app/config/test_store_use.py",
        "tests/jobs/test_configured.py",
    ),
    "one malformed reference a day, so that no sweep deletes anything": ("tests/app/payloads/test_sweep.py",),
    "encryption headers that were changed, copied from another record, or r": (
        "tests/integration/test_worker_encryption.py",
    ),
    "a foreign AWS KMS key, or any that the reader may use": ("tests/stores/test_kms.py",),
    "chunks that contradict each other, or a message that never ends": ("tests/transforms/test_reassembly.py",),
    "hundreds of interleaved messages, so that a Spark task reads the recor": ("tests/jobs/reading/test_messages.py",),
    "a chunk with the uuid of another writer's message": (),
    "one chunk of a message that has no others, so that a reading pipeline": (
        "tests/integration/test_worker_hostile.py",
    ),
    "a dead-letter record whose payload belongs to another topic": ("tests/app/deadletters/test_writer.py",),
    "one bad dead-letter record that ends every replay": ("tests/integration/test_dlq.py",),
    "a compressed batch of KBs that contains gigabytes, so that `dlq` is ki": (
        "tests/app/kafka/test_topic_reader.py",
        "tests/app/deadletters/test_replay.py",
    ),
    "ten thousands of bad dead-letter records among others, so that the gro": ("tests/integration/test_dlq.py",),
    "the store's owner, or anyone who may write to it: another payload, an": (
        "tests/stores/test_encrypted_payloads.py",
        "tests/transforms/test_encryption.py",
    ),
    "the store's owner, or anyone who may read it: the values, or which one": (
        "tests/integration/test_worker_encryption.py",
    ),
    "S3 server, or the network: a response without end": ("tests/stores/test_s3_broken.py",),
    "S3 server, KMS, Google's server, or the network: a response that nests": (
        "tests/stores/test_s3_broken.py",
        "tests/stores/test_kms.py",
        "tests/stores/test_gcs.py",
    ),
    "S3 server, KMS, STS, or the network: a response byte by byte, or a res": (
        "tests/stores/test_s3_expect.py",
        "tests/stores/test_http_time.py",
        "tests/stores/test_s3.py",
    ),
    "a program (`credential_process`) or a metadata service of AWS's provid": ("tests/stores/test_s3_credentials.py",),
    "a token service of Google's or of Kafka's logins: a response byte by b": (
        "tests/stores/test_gcs.py",
        "tests/app/kafka/test_tokens.py",
    ),
    "S3 server: control characters in its texts": ("tests/stores/test_broken_servers.py",),
    "S3 server: a redirect to another host": ("tests/stores/test_s3_broken.py",),
    "the network, with an `http://` store: another body in a put": ("tests/stores/test_s3.py",),
    "a server in place of Google's or Azure's: a response without end": ("tests/stores/test_gcs.py",),
    "the network, with Google or Azure: the token, or the shared access sig": ("tests/stores/test_azure.py",),
    "a schema registry of `ingest`: a response without end, a slow one, ref": (
        "tests/jobs/ingesting/test_registry.py",
    ),
    "a web page in your browser: DNS rebinding: requests to the worker unde": ("tests/app/web/test_server.py",),
    "a web page in your browser: a request that pauses or stops a pipeline,": ("tests/integration/test_rest.py",),
    "anyone who names a topic, or writes a record whose error is shown: mar": ("tests/app/web/test_dashboard.py",),
    "anyone who reaches the port: paths that leave the directories of the w": ("tests/app/web/test_dashboard.py",),
    "anyone who reaches the port: changes without the token, or with one th": (
        "tests/integration/test_rest.py",
        "tests/app/web/test_access.py",
    ),
    "anyone who reaches the port: a configuration to validate that names fi": ("tests/app/web/test_plugins.py",),
    "anyone who reaches the port: bodies of any size": ("tests/integration/test_rest.py",),
    "anyone who reaches the port: many connections, slow requests, long hea": ("tests/app/web/test_server.py",),
    "holders of the token: levels of loggers at which clients log secrets": ("tests/integration/test_rest.py",),
    "writers of `control.topic`: records that are not requests: broken, hug": (
        "tests/integration/test_control_topic.py",
        "tests/transforms/test_control_record.py",
    ),
    "anyone who reaches a machine with a local Spark job: Spark's web UI, a": (
        "tests/jobs/test_ingest.py",
        "tests/jobs/driver/test_session.py",
    ),
    "another user of the machine: files of `consume --output`; jars in the": (
        "tests/app/commands/test_consume.py",
        "tests/app/local/test_jars.py",
    ),
    "readers of logs, web UI, and dead-letter records: passwords, tokens, s": ("tests/integration/test_secrets.py",),
}


def test_each_attack_has_its_tests() -> None:
    """Each row of the page has its tests, by the first characters of its cells; and each test is there."""
    page = (ROOT / "docs" / "security.md").read_text("utf-8")
    tables = re.findall(r"^\| (?:attacker \| )?attack \| outcome \|\n\|[ |-]+\n((?:\|.*\n)+)", page, re.MULTILINE)
    rows = [": ".join(line.strip("| ").split(" | ")[:-1]) for table in tables for line in table.splitlines()]
    assert [row for row in rows if not any(row.startswith(each) for each in TESTS)] == []
    assert [each for each in TESTS if not any(row.startswith(each) for row in rows)] == []
    assert [each for tests in TESTS.values() for each in tests if not (ROOT / each).exists()] == []
