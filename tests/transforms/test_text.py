import pytest

from transforms.text import brief, bytes_text, did_you_mean, is_utf8, printable, text_table


def test_printable_harms_no_terminal() -> None:
    """Control characters and what is not UTF-8 are escaped; long keys are cut, also a megabyte of them."""
    assert printable(b"\x1b[2J\n\xff ok \xc3\xbc") == "\\x1b[2J\\n\\xff ok ü"
    assert printable(None) == "-"
    assert printable(b"x" * 1_000_000, 10) == "xxxxxxxxx…"
    assert printable(b"x" * 10, 10) == "x" * 10
    assert len(printable(b"\x00" * 1_000_000, 10)) == 10
    assert (printable("ü\n\ud800"), printable("x" * 200), printable("x" * 201)) == ("ü\\n?", "x" * 200, "x" * 199 + "…")
    assert (printable("𝄞" * 10, 10), printable("𝄞" * 11, 10)) == ("𝄞" * 10, "𝄞" * 9 + "…")


def test_brief_keeps_begin_and_end() -> None:
    """A text that fits stays as it is; of another one the middle goes, and what is not printable is escaped in both."""
    assert (brief("x" * 40), brief("x" * 41)) == ("x" * 40, "x" * 26 + "…" + "x" * 13)
    assert (brief("abcdefghi", 9), brief("abcdefghij", 9)) == ("abcdefghi", "abcde…hij")
    assert (brief("\nü"), brief("\n2345678\t", 6)) == ("\\nü", "\\n23…8\\t")


def test_is_utf8() -> None:
    """A lone surrogate is not."""
    assert (is_utf8("ü𝄞"), is_utf8(""), is_utf8("a\udc80")) == (True, True, False)


def test_bytes_text() -> None:
    """Sizes at each boundary of a unit."""
    sizes = (0, 999, 1000, 999_949, 999_950, 1_500_000, 10**9, 999_950_000_000, 2 * 10**12, 10**15)
    assert [bytes_text(n) for n in sizes] == [
        "0 B", "999 B", "1.0 kB", "999.9 kB", "1.0 MB", "1.5 MB", "1.0 GB", "1.0 TB", "2.0 TB", "1000.0 TB",
    ]  # fmt: skip


def test_did_you_mean() -> None:
    """A name that is nearly right gets the right one; another one gets nothing."""
    assert did_you_mean("raw-larg", ["orders", "raw-large", "raw"]) == "; did you mean raw-large?"
    assert did_you_mean("payments", ["orders", "raw-large"]) == ""
    assert did_you_mean("orders", ["payments", "borders-of-others"]) == ""
    assert did_you_mean("in-p42", ["in-p41", "in-p43", "in-p44"]) == "", "none is nearer than the others"
    assert did_you_mean("in-p42", ["in-p41", "in-p4", "in-p4"]) == "; did you mean in-p4?"
    assert did_you_mean("abcdefgh", ["abcdef12", "abcdef34", "abcdefg"]) == "; did you mean abcdefg?"
    assert did_you_mean("abcdefgh", ["abcde123"]) == "", "half of it is another name"


def test_text_table() -> None:
    """The first column stands left, all others right; no line ends with spaces."""
    assert (
        text_table(("topic", "size"), ("a", "10.0 kB"), ("orders", "-"))
        == "topic      size\na       10.0 kB\norders        -\n"
    )
    assert text_table(("topic",), ("a",)) == "topic\na\n"
    with pytest.raises(ValueError, match="zip"):
        text_table(("topic", "size"), ("a",))
