"""A `tokenizer.json` with its merges in their short form, which the Rust library loads in less time and memory.

Since version 0.20 it writes a merge as `["a", "b"]`; it still reads the older `"a b"`, which is the same where no token
has a blank. For a vocabulary of 151,000 tokens the old form takes 0.1 s and, while it is read, 56 MB less.
"""

_BEGIN, _BETWEEN, _NEXT, _END = b'"merges": [["', b'", "', b'"], ["', b'"]]}}'
_COMMENT = b"#version"  # a merge that begins so is skipped in the short form
_BACKSLASH, _QUOTE = b"\x00", b"\x01"
"""Stand for an escaped backslash and an escaped quote. JSON itself has neither of them."""


def with_short_merges(source: bytes) -> bytes:
    """The same tokenizer; `source` itself where a token of its merges has a blank, or where it has another form.

    Args:
        source: a `tokenizer.json` as Python's `json` writes it.

    >>> with_short_merges(b'{"model": {"merges": [["a", "b"], ["ab", "c"]]}}')
    b'{"model": {"merges": ["a b", "ab c"]}}'
    """
    if source.count(_BEGIN) != 1 or not source.endswith(_END) or _BACKSLASH in source or _QUOTE in source:
        return source
    begin = source.index(_BEGIN) + len(_BEGIN)
    # Now every quote begins or ends a token.
    merges = source[begin : -len(_END)].replace(rb"\\", _BACKSLASH).replace(rb"\"", _QUOTE)
    count = merges.count(_BETWEEN)
    if merges.count(_NEXT) != count - 1 or merges.count(b'"') != 4 * count - 2 or merges.count(b" ") != 2 * count - 1:
        return source
    if _COMMENT in merges:
        return source
    merges = merges.replace(_BETWEEN, b" ").replace(_NEXT, b'", "')
    return source[: begin - 2] + b'"' + merges.replace(_QUOTE, rb"\"").replace(_BACKSLASH, rb"\\") + b'"]}}'
