"""Text as people see it: characters that must be seen, shares."""

VISIBLE = (
    {code: chr(0x2400 + code) for code in range(32) if chr(code) not in "\t\n"}
    | {0x7F: "\u2421"}
    | {code: f"\\x{code:02x}" for code in range(0x80, 0xA0)}
    | {code: f"\\u{code:04x}" for code in (0x061C, 0x200B, 0x200E, 0x200F, 0x2060, 0xFEFF)}
    | {code: f"\\u{code:04x}" for code in (*range(0x2028, 0x202F), *range(0x2066, 0x206A), *range(0xD800, 0xE000))}
    | {code: f"\\U{code:08x}" for code in range(0xE0000, 0xE0080)}
)
"""For `str.translate`. Text must not control the terminal, nor hide in it: control and bidirectional characters are
made visible, and so are characters without width, tags, and surrogates, which no encoding can write."""


def percent(part: float, total: float) -> str:
    """A share as text: `12.5%`; 0.0% if the total is 0."""
    return f"{part / total if total else 0:.1%}"
