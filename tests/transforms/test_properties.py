from transforms.properties import entries

TEXT = """
# a comment, whose end is a backslash \\
! another
a=1
  b = 2\\
   and 3\\
#4

c=5\\\\
"""


def test_entries_of_a_file() -> None:
    """Without comments and empty lines; a line that ends with a backslash goes on, whatever stands in the next one."""
    assert entries(TEXT) == ["a=1", "b = 2and 3#4", "c=5\\"]
    assert entries("d=6\\") == ["d=6"]
    assert entries("a=1\nb=2\nX=3\\\n4\nc=5") == ["a=1", "b=2", "X=34", "c=5"]
