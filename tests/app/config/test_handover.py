"""A pipeline that writes a topic and one that reads it: what the reader would take wrong, or refuse, is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.cluster.preflight import check_stores
from app.config.handover import root_errors, store_doubts
from tests.app.configurations import HEAD, STORE, refusal_of, settings_of
from transforms.errors import ConfigurationError

KEY, OTHER_KEY = "k" * 32, "o" * 32


def row(writer: str, reader: str, *, store: str = STORE) -> str:
    """A file in which `a` writes topic `mid` and `b` reads it, each with more lines."""
    return HEAD + "".join(
        f"[pipeline.{name}]\ntopics = ['{source}']\noutput.topic = '{sink}'\n{store}{more}\n"
        for name, source, sink, more in (("a", "raw", "mid", writer), ("b", "mid", "end", reader))
    )


OFFLOAD = "transforms = ['offload']\n"
INFLATE = "transforms = ['inflate']\n"
AUTO = OFFLOAD + "large.message.strategy = 'auto'\n"


def encrypting(key_id: str, secret: str) -> str:
    """The lines of a pipeline that encrypts with a key of the configuration."""
    name = "large.message.encryption"
    return f"{name}.type = 'aes-256-gcm'\n{name}.key.id = '{key_id}'\n{name}.key.secret = '{secret * 32}'\n"


def encrypting_by_kms(key: str) -> str:
    """The same with a key of AWS KMS."""
    arn = f"arn:aws:kms:eu-west-1:111122223333:key/{key}"
    name = "large.message.encryption"
    return f"{name}.type = 'aes-256-gcm'\n{name}.kms.key.id = '{arn}'\n"


@pytest.mark.parametrize(
    ("writer", "reader"),
    [
        (OFFLOAD, INFLATE),
        (AUTO, INFLATE),
        ("transforms = ['chunk']\n", "transforms = ['assemble', 'wrap']\n"),
        ("transforms = ['offload', 'wrap']\n", "transforms = ['unwrap', 'inflate']\n"),
        (OFFLOAD, "transforms = ['wrap']\n"),  # it carries the references on
        (OFFLOAD, OFFLOAD),  # the references are offloaded
        (OFFLOAD, "transforms = ['chunk']\noffload.on.reference = 'pass'\n"),
        ("transforms = ['offload', 'wrap']\n", "transforms = ['chunk']\n"),  # no record has the headers
        (f"{OFFLOAD}large.message.signing.key = '{KEY}'\n", INFLATE),
        (
            f"{OFFLOAD}large.message.signing.key = '{KEY}'\n",
            f"{INFLATE}large.message.signing.key = '{OTHER_KEY}'\nlarge.message.signing.previous.keys = ['{KEY}']\n",
        ),
        (OFFLOAD, f"{INFLATE}large.message.signing.key = '{KEY}'\nlarge.message.signing.required = false\n"),
        (OFFLOAD, f"{INFLATE}large.message.max.bytes = 400_000_000\n"),
        (OFFLOAD, INFLATE + encrypting("one", "1f")),
        (OFFLOAD + encrypting("one", "1f"), INFLATE + encrypting("one", "1f")),
        (
            OFFLOAD + encrypting("one", "1f"),
            f"{INFLATE}large.message.encryption.previous.keys = ['one:{'1f' * 32}']\n",
        ),
        (OFFLOAD + encrypting_by_kms("aa"), INFLATE + encrypting_by_kms("aa")),
    ],
)
def test_rows_that_work(writer: str, reader: str) -> None:
    """What the reader understands is taken."""
    assert len(settings_of(row(writer, reader)).pipelines) == 2


@pytest.mark.parametrize(
    ("writer", "reader", "found", "what"),
    [
        (
            "transforms = ['chunk']\n",
            "transforms = ['unwrap']\n",
            "transforms: found ['unwrap']",
            "may write its values in chunks; they would be taken for values. Put assemble first",
        ),
        (
            AUTO,
            "transforms = ['wrap']\n",
            "transforms: found ['wrap']",
            "may write its values in chunks; they would be taken for values. Put assemble first",
        ),
        (
            AUTO + "chunk.max.message.bytes = 5_000_000\n",
            INFLATE + "chunk.max.message.bytes = 4_000_000\n",
            "chunk.max.message.bytes: found 4,000,000",
            "splits values of up to 5,000,000 bytes. Allowed is that or more",
        ),
        (
            "transforms = ['offload', 'wrap']\n",
            INFLATE,
            "transforms: found ['inflate']",
            "wraps its references; inflate would take them for values. Put unwrap before it",
        ),
        *(
            (
                OFFLOAD,
                reader,
                f"offload.on.reference: found '{found}'",
                "writes references, each of which would be refused. Set it to 'pass'",
            )
            for reader, found in (
                ("transforms = ['chunk']\n", "offload"),
                (f"{OFFLOAD}large.message.strategy = 'chunk'\n", "offload"),
                (f"{OFFLOAD}offload.on.reference = 'fail'\n", "fail"),
            )
        ),
        (
            OFFLOAD + "large.message.max.bytes = 300_000_000\n",
            INFLATE,
            "large.message.max.bytes: found 268,435,456",
            "stores values of up to 300,000,000 bytes. Allowed is that or more",
        ),
        (
            OFFLOAD,
            f"{INFLATE}large.message.signing.key = '{KEY}'\n",
            "large.message.signing.required: found true",
            "does not sign its references. Give it large.message.signing.key too",
        ),
        (
            f"{OFFLOAD}large.message.signing.key = '{OTHER_KEY}'\n",
            f"{INFLATE}large.message.signing.key = '{KEY}'\n",
            "large.message.signing.key: found another key",
            "signs its references with its own; inflate would refuse each of them. Give both the same key",
        ),
        *(
            (
                OFFLOAD + writer,
                INFLATE + reader,
                "large.message.encryption.previous.keys: found no such key",
                (
                    f"encrypts its payloads with key {key}; inflate would refuse each of its references. Give "
                    "this one the same key, with the same id"
                ),
            )
            for writer, reader, key in (
                (encrypting("one", "1f"), "", "one"),
                (encrypting("one", "1f"), encrypting("one", "2e"), "one"),
                (encrypting("one", "1f"), encrypting("two", "1f"), "one"),
                (encrypting_by_kms("aa"), encrypting_by_kms("bb"), "arn:aws:kms:eu-west-1:111122223333:key/aa"),
            )
        ),
    ],
)
def test_rows_that_do_not(writer: str, reader: str, found: str, what: str) -> None:
    """The error is the reader's, with the writer, the topic and what to do; no key is in it."""
    told = f"[pipeline.b] {found}, and pipeline a, which writes topic mid for this one, {what}"
    assert refusal_of(row(writer, reader)) == told


def test_formats() -> None:
    """A reader of another format would take references for values."""
    store = "large.message.payload.store.class = 's3'\ns3.bucket = 'b'\n"
    assert refusal_of(row(f"{OFFLOAD}reference.format = 'bakdata-headers'\n", INFLATE, store=store)) == (
        "[pipeline.b] reference.format: found 'wideload', and pipeline a, which writes topic mid for this one, writes "
        "'bakdata-headers'; inflate would take its references for values"
    )


async def test_roots(tmp_path: Path) -> None:
    """Two stores in a row are refused before anything is read; the same one in two places is not."""
    folders = ["one", "other"]
    for folder in folders:
        (tmp_path / folder).mkdir()

    def text(*roots: str) -> str:
        stores = [
            f"large.message.payload.store.class = 'filesystem'\nfilesystem.root = '{tmp_path / root}'\n"
            for root in roots
        ]
        return row(OFFLOAD + stores[0], INFLATE + stores[1], store="")

    await check_stores(settings_of(text("one", "one")).pipelines)
    with pytest.raises(ConfigurationError) as caught:
        await check_stores(settings_of(text(*folders)).pipelines)
    assert str(caught.value) == (
        f"[pipeline.b] filesystem.root: found a store at file://{tmp_path}/other/, and pipeline a, "
        f"which writes topic mid for this one, puts its payloads into file://{tmp_path}/one/; inflate would refuse "
        "each of its references. Use the same store"
    )


S3_A = "large.message.payload.store.class = 's3'\ns3.bucket = 'b'\ns3.endpoint = 'http://a:9000'\n"
OWN = "large.message.payload.store.class = 'shop.store.ShopStore'\n"


@pytest.mark.parametrize(
    ("reader", "told"),
    [
        (S3_A, None),
        (
            S3_A.replace("//a", "//b"),
            (
                "s3.endpoint: found 'http://b:9000', and pipeline a, which writes topic mid for this one, puts its "
                "payloads into the store at s3.endpoint 'http://a:9000'; inflate would find none of them, unless both "
                "lead to one server"
            ),
        ),
        (
            OWN,
            (
                "large.message.payload.store.class: found 'shop.store.ShopStore', and pipeline a, which writes topic "
                "mid for this one, puts its payloads into a store of class 's3'; inflate would find none of them, "
                "unless the one reads what the other writes"
            ),
        ),
    ],
)
def test_stores_that_may_be_one(reader: str, told: str | None) -> None:
    """What may be one store or two is a warning: another endpoint, or a class of which only its owner knows."""
    settings = settings_of(row(OFFLOAD + S3_A, INFLATE + reader, store=""))
    expected = [] if told is None else [f"[pipeline.b] {told}"]
    assert [str(doubt) for doubt in store_doubts(settings.pipelines)] == expected


@pytest.mark.parametrize(("more", "key"), [("s3.prefix = 'p'\n", "s3.prefix"), ("s3.bucket = 'other'\n", "s3.bucket")])
def test_roots_name_the_key_that_differs(more: str, key: str) -> None:
    """Another bucket, or another prefix, is said of the key that differs."""
    ours = S3_A.replace("s3.bucket = 'b'\n", "") + more if "bucket" in more else S3_A + more
    pipelines = settings_of(row(OFFLOAD + S3_A, INFLATE + ours, store="")).pipelines
    (error,) = root_errors(pipelines, {"a": "s3://one/", "b": "s3://other/"})
    assert (error.pipeline, error.key) == ("b", key)
