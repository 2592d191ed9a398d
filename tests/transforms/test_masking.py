"""What looks like a secret in a text, and what is known to be one."""

from __future__ import annotations

import pytest

from transforms.masking import masked


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("GET https://user:pass@host/x failed", "GET https://***@host/x failed"),
        ("https://h/x?X-Amz-Signature=abc&a=1", "https://h/x?***&a=1"),
        ("'https://h/x?a=1&sig=a%2Fb' and ?token=t", "'https://h/x?a=1&***' and ?***"),
        ("x-goog-credential=a of ?x-goog-credential=a", "x-goog-credential=a of ?***"),
        ("mail a:b@c, path /a:b@c, https://host:80/x", "mail a:b@c, path /a:b@c, https://host:80/x"),
        ("b'Authorization: Basic b3A6dG9rZW4tb2Ytd2hvLW1heQ==\\x00'", "b'Authorization: Basic ***\\x00'"),
        ("HTTP Basic authentication", "HTTP Basic authentication"),
        ("", ""),
    ],
)
def test_what_looks_like_a_secret(text: str, shown: str) -> None:
    """User and password of a URL or of HTTP Basic, and the signature of a URL; nothing else."""
    assert masked(text) == shown


def test_what_is_known_to_be_one() -> None:
    """Wherever it stands, the longest first; what is so short that it is everywhere stays."""
    assert masked("of hunter2hunter2, hunter2, a", ["hunter2", "hunter2hunter2", "a"]) == "of ***, ***, a"
    assert masked("longest, secret-longest", ["longest", "secret-longest"]) == "***, ***"
    assert masked("secret, short", ["secret", "short"]) == "***, short", "six characters, and five"
