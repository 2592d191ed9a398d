"""A pipeline that writes a topic and one that reads it: what the reader would take wrong, or refuse, is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.cluster.preflight import check_stores
from app.config.handover import root_errors, store_doubts
from tests.app.configurations import HEAD, STORE, refusal_of, settings_of
from transforms.errors import ConfigurationError

KEY, OTHER_KEY = "k" * 32, "o" * 32
S3_A = "large.message.payload.store.class = 's3'\ns3.bucket = 'b'\ns3.endpoint = 'http://a:9000'\n"


def row(writer: str, reader: str, *, stores: tuple[str, str] = (STORE, STORE)) -> str:
    """A file in which `a` writes topic `mid` and `b` reads it, each with more lines."""
    return HEAD + "".join(
        f"[pipeline.{name}]\ntopics = ['{source}']\noutput.topic = '{sink}'\n{store}{more}\n"
        for name, source, sink, store, more in (
            ("a", "raw", "mid", stores[0], writer),
            ("b", "mid", "end", stores[1], reader),
        )
    )


def of(*transforms: str) -> str:
    """The line with the transforms."""
    return f"transforms = {list(transforms)}\n"


OFFLOAD, INFLATE, CHUNK = of("offload"), of("inflate"), of("chunk")
AUTO = OFFLOAD + "large.message.strategy = 'auto'\n"
SIGNED, SIGNED_OTHERWISE = (f"large.message.signing.key = '{key}'\n" for key in (KEY, OTHER_KEY))
OLD_KEY = f"large.message.signing.previous.keys = ['{KEY}']\n"


def encrypting(key_id: str, secret: str = "") -> str:
    """The lines of a pipeline that encrypts with a key of the configuration, or of AWS KMS."""
    name = "large.message.encryption"
    key = (
        f"{name}.key.id = '{key_id}'\n{name}.key.secret = '{secret * 32}'"
        if secret
        else f"{name}.kms.key.id = '{key_id}'"
    )
    return f"{name}.type = 'aes-256-gcm'\n{key}\n"


ONE, ONE_ANEW, TWO = encrypting("one", "1f"), encrypting("one", "2e"), encrypting("two", "1f")
ARN = "arn:aws:kms:eu-west-1:111122223333:key/aa"
OF_KMS, OF_OTHER_KMS = encrypting(ARN), encrypting(f"{ARN}b")


@pytest.mark.parametrize(
    ("writer", "reader"),
    [
        (OFFLOAD, INFLATE),
        (AUTO, INFLATE),
        (CHUNK, of("assemble", "wrap")),
        (of("offload", "wrap"), of("unwrap", "inflate")),
        (OFFLOAD, of("wrap")),  # it carries the references on
        (OFFLOAD, OFFLOAD),  # the references are offloaded
        (OFFLOAD, CHUNK + "offload.on.reference = 'pass'\n"),
        (of("offload", "wrap"), CHUNK),  # no record has the headers
        (OFFLOAD + SIGNED, INFLATE),
        (OFFLOAD + SIGNED, INFLATE + SIGNED_OTHERWISE + OLD_KEY),
        (OFFLOAD, INFLATE + SIGNED + "large.message.signing.required = false\n"),
        (OFFLOAD, INFLATE + "large.message.max.bytes = 400_000_000\n"),
        (OFFLOAD, INFLATE + ONE),
        (OFFLOAD + ONE, INFLATE + ONE),
        (OFFLOAD + ONE, f"{INFLATE}large.message.encryption.previous.keys = ['one:{'1f' * 32}']\n"),
        (OFFLOAD + OF_KMS, INFLATE + OF_KMS),
    ],
)
def test_rows_that_work(writer: str, reader: str) -> None:
    """What the reader understands is taken."""
    assert len(settings_of(row(writer, reader)).pipelines) == 2


TORN = "may write its values as chunks, which would be treated as values. Put assemble first"
REFUSED = "writes references, all of which would be refused. Set it to 'pass'"


@pytest.mark.parametrize(
    ("writer", "reader", "found", "what"),
    [
        (CHUNK, of("unwrap"), "transforms: found ['unwrap']", TORN),
        (AUTO, of("wrap"), "transforms: found ['wrap']", TORN),
        (
            AUTO + "chunk.max.message.bytes = 5_000_000\n",
            INFLATE + "chunk.max.message.bytes = 4_000_000\n",
            "chunk.max.message.bytes: found 4,000,000",
            "splits values of up to 5,000,000 bytes. Allowed is that or more",
        ),
        (
            of("offload", "wrap"),
            INFLATE,
            "transforms: found ['inflate']",
            "wraps its references; inflate would treat them as values. Put unwrap before inflate",
        ),
        (OFFLOAD, CHUNK, "offload.on.reference: found 'offload'", REFUSED),
        (OFFLOAD, f"{OFFLOAD}large.message.strategy = 'chunk'\n", "offload.on.reference: found 'offload'", REFUSED),
        (OFFLOAD, f"{OFFLOAD}offload.on.reference = 'fail'\n", "offload.on.reference: found 'fail'", REFUSED),
        (
            OFFLOAD + "large.message.max.bytes = 300_000_000\n",
            INFLATE,
            "large.message.max.bytes: found 268,435,456",
            "stores values of up to 300,000,000 bytes. Allowed is that or more",
        ),
        (
            OFFLOAD,
            INFLATE + SIGNED,
            "large.message.signing.required: found true",
            "does not sign its references. Set large.message.signing.key there too",
        ),
        (
            OFFLOAD + SIGNED_OTHERWISE,
            INFLATE + SIGNED,
            "large.message.signing.key: found a different key",
            "signs its references; inflate would refuse all of them. Use the same key in both",
        ),
        *(
            (
                OFFLOAD + writer,
                INFLATE + reader,
                "large.message.encryption.previous.keys: found no such key",
                (
                    f"encrypts its payloads with key {key}; inflate would refuse all of its references. Add "
                    "the same key here, with the same id"
                ),
            )
            for writer, reader, key in (
                (ONE, "", "one"),
                (ONE, ONE_ANEW, "one"),
                (ONE, TWO, "one"),
                (OF_KMS, OF_OTHER_KMS, ARN),
            )
        ),
    ],
)
def test_rows_that_do_not(writer: str, reader: str, found: str, what: str) -> None:
    """The error is the reader's, with the writer, the topic and what to do; no key is in it."""
    told = f"[pipeline.b] {found}, but pipeline a, which writes topic mid for this pipeline, {what}"
    assert refusal_of(row(writer, reader)) == told


def test_formats() -> None:
    """A reader of another format would take references for values."""
    assert refusal_of(row(f"{OFFLOAD}reference.format = 'bakdata-headers'\n", INFLATE, stores=(S3_A, S3_A))) == (
        "[pipeline.b] reference.format: found 'wideload', but pipeline a, which writes topic mid for this pipeline, "
        "writes 'bakdata-headers'; inflate would treat its references as values"
    )


async def test_roots(tmp_path: Path) -> None:
    """Two stores in a row are refused before anything is read; the same one in two places is not."""
    one, other = [
        f"large.message.payload.store.class = 'filesystem'\nfilesystem.root = '{tmp_path / root}'\n"
        for root in ("one", "other")
    ]
    for root in ("one", "other"):
        (tmp_path / root).mkdir()
    await check_stores(settings_of(row(OFFLOAD, INFLATE, stores=(one, one))).pipelines)
    with pytest.raises(ConfigurationError) as caught:
        await check_stores(settings_of(row(OFFLOAD, INFLATE, stores=(one, other))).pipelines)
    assert str(caught.value) == (
        f"[pipeline.b] filesystem.root: found a store at file://{tmp_path}/other/, but pipeline a, "
        f"which writes topic mid for this pipeline, stores its payloads in file://{tmp_path}/one/; inflate would "
        "refuse all of its references. Use the same store"
    )


@pytest.mark.parametrize(
    ("reader", "told"),
    [
        (S3_A, None),
        (
            S3_A.replace("//a", "//b"),
            (
                "s3.endpoint: found 'http://b:9000', but pipeline a, which writes topic mid for this pipeline, stores "
                "its payloads in the store at s3.endpoint 'http://a:9000'; inflate would find none of them, unless "
                "both lead to the same server"
            ),
        ),
        (
            "large.message.payload.store.class = 'shop.store.ShopStore'\n",
            (
                "large.message.payload.store.class: found 'shop.store.ShopStore', but pipeline a, which writes topic "
                "mid for this pipeline, stores its payloads in a store of class 's3'; inflate would find none of "
                "them, unless the one can read what the other writes"
            ),
        ),
    ],
)
def test_stores_that_may_be_one(reader: str, told: str | None) -> None:
    """What may be one store or two is a warning: another endpoint, or a class of which only its owner knows."""
    settings = settings_of(row(OFFLOAD, INFLATE, stores=(S3_A, reader)))
    expected = [] if told is None else [f"[pipeline.b] {told}"]
    assert [str(doubt) for doubt in store_doubts(settings.pipelines)] == expected


@pytest.mark.parametrize(
    ("ours", "key"),
    [
        (S3_A + "s3.prefix = 'p'\n", "s3.prefix"),
        (S3_A.replace("'b'", "'other'"), "s3.bucket"),
        (STORE, "large.message.payload.store.class"),
    ],
)
def test_roots_name_the_key_that_differs(ours: str, key: str) -> None:
    """Another bucket, another prefix, or another store is said of the key that differs."""
    pipelines = settings_of(row(OFFLOAD, INFLATE, stores=(S3_A, ours))).pipelines
    (error,) = root_errors(pipelines, {"a": "s3://one/", "b": "s3://other/"})
    assert (error.pipeline, error.key) == ("b", key)
