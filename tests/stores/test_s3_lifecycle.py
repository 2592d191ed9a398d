from __future__ import annotations

import contextlib
import json
import re
import time
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from hashlib import md5
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stores.s3 import S3Store
from stores.s3_lifecycle import own_id, reaching, with_own_rule
from stores.store import Lifecycle
from tests.s3_server import S3Server
from tests.stores.scripted_server import Request, Script, Wire, error, scripted_server
from transforms.errors import PayloadStoreError

PREFIX = "a b/ünï&<code>/orders/"
ROOT = PREFIX.removesuffix("/orders/")
RULE = re.compile(rb"<Rule>.*?</Rule>", re.DOTALL)

# Rules of others: each way to write a filter, and two elements of MinIO's own that boto3 has no name for.
THEIRS = b"""
<Rule><ID>legacy</ID><Status>Enabled</Status><Prefix>a b/</Prefix><Expiration><Days>400</Days></Expiration></Rule>
<Rule><ID>tagged</ID><Status>Enabled</Status><Filter><And><Prefix>a</Prefix><Tag><Key>k</Key><Value>v</Value></Tag></And></Filter><Expiration><Days>3</Days></Expiration></Rule>
<Rule><ID>one tag</ID><Status>Enabled</Status><Filter><Tag><Key>k</Key><Value>w</Value></Tag></Filter><Expiration><Days>4</Days></Expiration></Rule>
<Rule><ID>dated</ID><Status>Enabled</Status><Filter><Prefix></Prefix></Filter><Expiration><Date>2090-01-31T00:00:00Z</Date></Expiration></Rule>
<Rule><ID>sized</ID><Status>Enabled</Status><Filter><ObjectSizeGreaterThan>5000</ObjectSizeGreaterThan></Filter><Expiration><Days>5</Days></Expiration></Rule>
<Rule><ID>longer</ID><Status>Enabled</Status><Filter><Prefix>a b/\xc3\xbcn\xc3\xaf&amp;&lt;code&gt;/orders/0</Prefix></Filter><Expiration><Days>6</Days></Expiration></Rule>
<Rule><ID>off</ID><Status>Disabled</Status><Filter><Prefix></Prefix></Filter><Expiration><Days>1</Days></Expiration></Rule>
<Rule><ID>beside</ID><Status>Enabled</Status><Filter><Prefix>a b/\xc3\xbcn\xc3\xaf&amp;&lt;code&gt;/orders-2/</Prefix></Filter><Expiration><Days>1</Days></Expiration></Rule>
<Rule><ID>versions</ID><Status>Enabled</Status><Filter><Prefix></Prefix></Filter><NoncurrentVersionExpiration><NoncurrentDays>2</NoncurrentDays></NoncurrentVersionExpiration></Rule>
<Rule><ID>minio</ID><Status>Enabled</Status><Filter><Prefix>q/</Prefix></Filter><Expiration><Days>4</Days><ExpiredObjectAllVersions>true</ExpiredObjectAllVersions></Expiration><DelMarkerExpiration><Days>3</Days></DelMarkerExpiration></Rule>
"""  # noqa: E501


def document(*rules: bytes) -> bytes:
    return b"<LifecycleConfiguration>%b</LifecycleConfiguration>" % b"".join(rules)


class Bucket:
    """A bucket as its administrator sees it, with the rules as text."""

    def __init__(self, server: S3Server) -> None:
        self.server = server
        self._client = server.client()
        events = self._client.meta.events
        events.register("before-call.s3.PutBucketLifecycleConfiguration", self._send)
        events.register("after-call.s3.GetBucketLifecycleConfiguration", self._keep)
        self._text = b""

    def set(self, text: bytes) -> None:
        """Replaces all rules."""
        self._text = text
        self._client.put_bucket_lifecycle_configuration(Bucket=self.server.bucket, LifecycleConfiguration={"Rules": []})

    def clear(self) -> None:
        self._client.delete_bucket_lifecycle(Bucket=self.server.bucket)

    def rules(self) -> list[bytes]:
        """Every rule, as the server has it."""
        try:
            self._client.get_bucket_lifecycle_configuration(Bucket=self.server.bucket)
        except self._client.exceptions.ClientError as exc:
            assert exc.response["Error"]["Code"] == "NoSuchLifecycleConfiguration"  # noqa: PT017
            return []
        return RULE.findall(self._text)

    def close(self) -> None:
        self._client.close()

    def _send(self, params: dict[str, Any], **_: object) -> None:
        params["body"] = self._text

    def _keep(self, http_response: Any, **_: object) -> None:
        self._text = http_response.content


@pytest.fixture
def bucket(with_rules: S3Server) -> Iterator[Bucket]:
    """A bucket without rules."""
    found = Bucket(with_rules)
    found.clear()
    yield found
    found.clear()
    found.close()


@pytest.fixture
def store(with_rules: S3Server) -> Iterator[S3Store]:
    """A store in that bucket, below a prefix that has to be escaped."""
    with opened(with_rules.config(ROOT)) as found:
        yield found


@contextlib.contextmanager
def opened(config: Mapping[str, object]) -> Iterator[S3Store]:
    found = S3Store()
    found.configure(config)
    with contextlib.closing(found):
        yield found


# --- a real server --------------------------------------------------------------------------------------------------


@pytest.mark.s3
def test_no_rules_are_no_error(bucket: Bucket, store: S3Store) -> None:
    """A bucket that never had a rule has none, and taking ours out changes nothing."""
    assert isinstance(store, Lifecycle)
    assert store.expiry_rules("orders") == []
    assert store.set_expiry("orders", None) is False
    assert bucket.rules() == []


@pytest.mark.s3
def test_own_rule_is_set_changed_and_removed(bucket: Bucket, store: S3Store) -> None:
    """Our rule is for the payloads of one topic; setting it again changes nothing; the last one leaves no rules."""
    assert store.set_expiry("orders", 9) is True
    written = bucket.rules()
    assert store.set_expiry("orders", 9) is False
    assert bucket.rules() == written
    (rule,) = store.expiry_rules("orders")
    assert (rule.days, rule.whole, rule.own, rule.id) == (9, True, True, own_id(PREFIX))
    assert store.expiry_rules("orders-2") == []
    assert store.set_expiry("orders", 12) is True
    assert [rule.days for rule in store.expiry_rules("orders")] == [12]
    assert store.set_expiry("orders", None) is True
    assert bucket.rules() == []


@pytest.mark.s3
@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo"])
def test_rules_of_others_stay_byte_for_byte(
    bucket: Bucket, store: S3Store, zone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever others wrote is there afterwards as it was, also what boto3 does not know, in any time zone."""
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        bucket.set(document(THEIRS))
        theirs = bucket.rules()
        assert len(theirs) == 10
        assert b"<DelMarkerExpiration>" in b"".join(theirs)
        for days in (9, 30):
            assert store.set_expiry("orders", days) is True
            assert bucket.rules()[:10] == theirs
            assert len(bucket.rules()) == 11
        assert store.set_expiry("payments", 9) is True
        assert store.set_expiry("orders", None) is True
        assert store.set_expiry("payments", None) is True
        assert bucket.rules() == theirs
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.s3
def test_rules_that_reach_payloads(bucket: Bucket, store: S3Store) -> None:
    """Of all rules those are told that are on and may delete payloads of the topic, and what each is for."""
    bucket.set(document(THEIRS))
    found = {rule.id: rule for rule in store.expiry_rules("orders")}
    assert {name: rule.days for name, rule in found.items()} == {
        "legacy": 400, "tagged": 3, "one tag": 4, "dated": None, "sized": 5, "longer": 6,
    }  # fmt: skip
    assert {name for name, rule in found.items() if rule.whole} == {"legacy", "dated"}
    assert {name for name, rule in found.items() if rule.tagged} == {"tagged", "one tag"}
    assert found["dated"].date == "2090-01-31"
    assert found["tagged"].scope == "keys that begin with a, tag k=v"
    assert found["sized"].scope == "all keys, over 5,000 bytes"
    assert found["longer"].scope == f"keys that begin with {PREFIX}0"
    assert not any(rule.own for rule in found.values())


@pytest.mark.s3
def test_own_rule_that_is_off_is_set_again(bucket: Bucket, store: S3Store) -> None:
    """A rule of ours that somebody switched off does not count, and is switched on."""
    store.set_expiry("orders", 9)
    bucket.set(document(*bucket.rules()).replace(b"Enabled", b"Disabled"))
    assert store.expiry_rules("orders") == []
    assert store.set_expiry("orders", 9) is True
    assert [rule.days for rule in store.expiry_rules("orders")] == [9]


@pytest.mark.s3
def test_longest_topic_has_a_rule(with_rules: S3Server, bucket: Bucket) -> None:
    """The ID of a rule is within S3's 255 characters also for the longest topic, and two prefixes have two rules."""
    topic = "t" * 249
    with opened(with_rules.config("one")) as one, opened(with_rules.config("two")) as two:
        assert one.set_expiry(topic, 9)
        assert two.set_expiry(topic, 10)
        assert [[rule.days for rule in store.expiry_rules(topic)] for store in (one, two)] == [[9], [10]]
    assert len(bucket.rules()) == 2


@pytest.mark.s3
def test_permissions_that_it_takes(minio: S3Server) -> None:
    """One permission is enough to look and both to change; what is missing is named, and nothing changes without it."""
    read, write = "s3:GetLifecycleConfiguration", "s3:PutLifecycleConfiguration"
    with opened(allowed(minio, "s3:GetObject")) as store, pytest.raises(PayloadStoreError, match=f"it needs {read} on"):
        store.expiry_rules("orders")
    with opened(allowed(minio, read)) as store:
        assert store.expiry_rules("orders") == []
        with pytest.raises(PayloadStoreError, match=f"it needs {write} on"):
            store.set_expiry("orders", 9)
        assert store.expiry_rules("orders") == []
    with opened(allowed(minio, read, write)) as store:
        assert store.set_expiry("orders", 9) is True
        assert store.set_expiry("orders", None) is True


def allowed(server: S3Server, *actions: str) -> dict[str, object]:
    """The keys of a store whose user may do this and nothing else."""
    statement = {"Effect": "Allow", "Action": actions, "Resource": ["arn:aws:s3:::*"]}
    with contextlib.closing(server.client("sts")) as client:
        given = client.assume_role(
            RoleArn="arn:aws:iam::000000000000:role/any",
            RoleSessionName="test",
            Policy=json.dumps({"Version": "2012-10-17", "Statement": [statement]}),
        )["Credentials"]
    return {
        **server.config("p"),
        "s3.access.key": given["AccessKeyId"],
        "s3.secret.key": given["SecretAccessKey"],
        "s3.session.token": given["SessionToken"],
    }


def test_servers_without_rules_say_so(plain: S3Server) -> None:
    """One line says that there are no rules, and what it means; rclone, which answers by a listing, changes nothing."""
    found = "<ListBucketResult>" if plain.kind == "rclone" else "NotImplemented"
    with opened(plain.config()) as store:
        for call in (lambda: store.expiry_rules("orders"), lambda: store.set_expiry("orders", 9)):
            with pytest.raises(PayloadStoreError) as caught:
                call()
            assert str(caught.value) == (
                "GetBucketLifecycleConfiguration s3://payloads failed: this S3 server has no expiry rules "
                f"({found}); payloads stay until they are deleted by other means"
            )
            assert not caught.value.retriable
        store.check()


# --- a server that says what is wanted ------------------------------------------------------------------------------


def answers(*texts: bytes | Script, sent: list[Request]) -> Script:
    """Answers each request to read rules with the next text, the last one for ever; notes what is written."""
    waiting = list(texts)

    def script(request: Request, wire: Wire) -> bool:
        if request.method != "GET":
            sent.append(request)
        found: bytes | Script = b""
        if request.method == "GET":
            found = waiting.pop(0) if len(waiting) > 1 else waiting[0]
        if callable(found):
            return found(request, wire)
        head = b"x-amz-transition-default-minimum-object-size: varies_by_storage_class\r\n"
        wire.write(b"HTTP/1.1 200 OK\r\n%bContent-Length: %d\r\n\r\n%b" % (head, len(found), found))
        return True

    return script


def test_default_beside_the_rules_goes_back() -> None:
    """The default that stands beside the rules is sent again: without it S3 would take its own."""
    theirs = document(RULE.findall(THEIRS)[0])
    sent: list[Request] = []
    after = with_own_rule(theirs, "orders/", 9)
    assert after is not None
    with scripted_server(answers(theirs, after, sent=sent)) as server, opened(server.config()) as store:
        assert store.set_expiry("orders", 9) is True
    (put,) = sent
    assert put.body == after
    assert put.headers["x-amz-transition-default-minimum-object-size"] == "varies_by_storage_class"


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (error(403, "AccessDenied"), r"AccessDenied; it needs s3:GetLifecycleConfiguration on the bucket"),
        (error(404, "NoSuchBucket"), r"bucket payloads does not exist"),
        (error(403, "InvalidAccessKeyId"), r"check s3\.access\.key"),
    ],
)
def test_refusal_to_read_names_what_is_missing(script: Script, message: str) -> None:
    """Where the rules cannot be read, the message has the permission or the key to change."""
    with scripted_server(script) as server, opened(server.config()) as store:
        with pytest.raises(PayloadStoreError, match=message) as caught:
            store.expiry_rules("orders")
        assert not caught.value.retriable


@pytest.mark.parametrize("days", [9, None])
def test_refusal_to_write_names_the_permission(days: int | None) -> None:
    """Who may only read the rules is told what it takes to set one, or to remove the last."""
    own = with_own_rule(document(), "orders/", 3)
    assert own is not None

    def script(request: Request, wire: Wire) -> bool:
        if request.method != "GET":
            return error(403, "AccessDenied")(request, wire)
        wire.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(own), own))
        return True

    with (
        scripted_server(script) as server,
        opened(server.config()) as store,
        pytest.raises(PayloadStoreError, match=r"it needs s3:PutLifecycleConfiguration on the bucket"),
    ):
        store.set_expiry("orders", days)


@pytest.mark.parametrize("theirs", [b"", RULE.findall(THEIRS)[0]])
def test_change_by_another_at_the_same_time_is_noticed(theirs: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where our rule is not there afterwards, or another's is gone, that is an error, which may be tried again."""
    monkeypatch.setattr("stores.s3_lifecycle._SETTLE_S", 0.0)
    after = with_own_rule(document(), "orders/", 9) if theirs else document()
    assert after is not None
    script = answers(document(theirs), after, sent=[])
    with scripted_server(script) as server, opened(server.config()) as store:
        with pytest.raises(PayloadStoreError, match="may have been changed concurrently") as caught:
            store.set_expiry("orders", 9)
        assert caught.value.retriable


def test_rules_seen_late_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that shows a change only after a while is asked again."""
    monkeypatch.setattr("stores.s3_lifecycle._PAUSE_S", 0.01)
    after = with_own_rule(document(), "orders/", 9)
    assert after is not None
    with scripted_server(answers(document(), document(), after, sent=[])) as server, opened(server.config()) as store:
        assert store.set_expiry("orders", 9) is True


def test_rules_written_in_another_way_are_left() -> None:
    """What cannot be edited for sure is not edited."""
    odd = b'<LifecycleConfiguration><Rule x="1"><ID>a</ID></Rule></LifecycleConfiguration>'
    sent: list[Request] = []
    with (
        scripted_server(answers(odd, sent=sent)) as server,
        opened(server.config()) as store,
        pytest.raises(PayloadStoreError, match="nothing was changed"),
    ):
        store.set_expiry("orders", 9)
    assert sent == []


# --- the text ---------------------------------------------------------------------------------------------------------


def test_own_rule_in_literal_bytes() -> None:
    """The rule as it is sent; whatever stands around it stays."""
    own = (
        b"<Rule><ID>wideload-orders-cb18260e</ID><Filter><Prefix>p&amp;/orders/</Prefix></Filter>"
        b"<Status>Enabled</Status><Expiration><Days>9</Days></Expiration></Rule>"
    )
    assert with_own_rule(document(), "p&/orders/", 9) == document(own)
    theirs = b"\n <Rule>\n<ID>x</ID></Rule> "
    assert with_own_rule(document(theirs), "p&/orders/", 9) == document(theirs, own)
    assert with_own_rule(document(own, theirs), "p&/orders/", 10) == document(own.replace(b">9<", b">10<"), theirs)
    assert with_own_rule(document(own, theirs), "p&/orders/", None) == document(theirs)
    assert with_own_rule(document(own), "p&/orders/", None) is None


@pytest.mark.parametrize("text", [b"", b"<Error/>", document(b"<Rule a='b'></Rule>"), document() + document()])
def test_text_that_cannot_be_changed(text: bytes) -> None:
    """What is no document of rules, or is written in another way, is refused."""
    with pytest.raises(ValueError, match="do not have the form of S3"):
        with_own_rule(text, "orders/", 9)


@given(
    st.lists(st.sampled_from(RULE.findall(THEIRS)), max_size=5),
    st.lists(st.tuples(st.sampled_from(["a/", "b/", "p/a/"]), st.none() | st.integers(1, 99)), max_size=8),
)
def test_any_changes_leave_the_rules_of_others(
    theirs: Sequence[bytes], changes: Sequence[tuple[str, int | None]]
) -> None:
    """After any changes the others' rules are as they were, and each prefix has its last rule or none."""
    text = document(*theirs)
    for prefix, days in changes:
        text = with_own_rule(text, prefix, days) or document()
    rules = RULE.findall(text)
    assert [rule for rule in rules if b"wideload-" not in rule] == list(theirs)
    wanted = {prefix: days for prefix, days in dict(changes).items() if days is not None}
    assert len(rules) == len(theirs) + len(wanted)
    for prefix, days in wanted.items():
        assert any(
            f"<ID>{own_id(prefix)}</ID>" in rule.decode() and f"<Days>{days}<" in rule.decode() for rule in rules
        )


def test_rule_without_id_or_expiry_of_current_objects() -> None:
    """A rule may have no ID; one that expires only delete markers, or old versions, deletes no payload."""
    date = datetime(2090, 1, 31, tzinfo=UTC)
    rules = [
        {"Status": "Enabled", "Filter": {}, "Expiration": {"Days": 3}},
        {"ID": "m", "Status": "Enabled", "Filter": {}, "Expiration": {"ExpiredObjectDeleteMarker": True}},
        {"ID": "v", "Status": "Enabled", "Filter": {}, "NoncurrentVersionExpiration": {"NoncurrentDays": 3}},
        {"ID": "d", "Status": "Enabled", "Expiration": {"Date": date}},
        {"ID": "s", "Status": "Enabled", "Filter": {"And": {"Prefix": "p/", "ObjectSizeLessThan": 9}},
         "Expiration": {"Days": 4}},
    ]  # fmt: skip
    found = reaching("p/orders/", rules)
    assert [(rule.id, rule.days, rule.date, rule.scope) for rule in found] == [
        ("", 3, None, "all keys"),
        ("d", None, "2090-01-31", "all keys"),
        ("s", 4, None, "keys that begin with p/, under 9 bytes"),
    ]


def test_a_server_that_asks_for_content_md5_gets_it() -> None:
    """Older servers refuse rules without it; the second put has it, and so has each put behind."""
    after = with_own_rule(document(), "orders/", 9)
    assert after is not None
    sent: list[Request] = []
    answering = answers(document(), after, document(), after, sent=sent)

    def script(request: Request, wire: Wire) -> bool:
        if request.method == "PUT" and "content-md5" not in request.headers:
            return error(400, "MissingContentMD5")(request, wire)
        return answering(request, wire)

    with scripted_server(script) as server, opened(server.config()) as store:
        for _ in range(2):
            assert store.set_expiry("orders", 9) is True
        assert len([request for request in server.requests if request.method == "PUT"]) == 3
    digest = b64encode(md5(after, usedforsecurity=False).digest()).decode()
    assert [(put.body, put.headers["content-md5"]) for put in sent] == [(after, digest)] * 2


def test_content_md5_beside_a_newer_checksum_is_accepted(with_rules: S3Server) -> None:
    """A server that checks both finds both right."""
    with opened(with_rules.config("md5")) as store:
        store._lifecycle._md5 = True
        assert store.set_expiry("orders", 9) is True
        assert [rule.days for rule in store.expiry_rules("orders") if rule.own] == [9]
        assert store.set_expiry("orders", None) is True
