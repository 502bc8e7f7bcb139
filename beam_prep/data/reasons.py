"""The reasons why the package leaves records out. A user's filter or map may give any other reason.

`python -m tools.config_page` writes these tables into docs/formats.md; a test compares them with the code.
"""

Reason = str
"""A key of `REJECTED`; or, of a filter or map of a user, anything."""

REJECTED: dict[Reason, str] = {
    "bad_json": "is not JSON",
    "invalid_utf8": "is not UTF-8",
    "duplicate_key": "has a key twice in one object",
    "keep_fields": "has a value in a field of `output.keep_fields` that its column cannot hold",
    "bad_number": "has a number beyond a double, or one that its column's dtype does not hold",
    "bad_text": "has half of a surrogate pair (`\\ud800` alone) in a text or a key, which no tokenizer takes",
    "line_too_long": "is longer than `--max_line_bytes`; at most 64 KB of it are read for `text`",
    "too_deep": "is nested deeper than 512 levels",
    "no_split_key": "has no `output.split_key`, which decides its split",
    "no_key": "has none of the fields that deduplication compares",
    "not_an_object": "is JSON, but not an object",
    "not_json": "has a value that JSON lacks (bytes, NaN), in a collection, or in a table's field that the run reads",
    "wrong_type": "has a field of the wrong type, for instance a number where a text is wanted",
    "bad_message": "has a message without a role",
    "bad_weight": "has a weight that is not 0 or 1, or contradicts `train`; with `loss_weights`: beyond 1e-12 to 1e12",
    "unsupported_part": "has a content part of a type that is not known",
    "not_text": "has an image, a sound, a video or a file",
    "bad_tools": "has `tools` or `functions` that a template cannot take",
    "bad_kwargs": "has `chat_template_kwargs` that a template cannot take",
    "template_error": "has a message that the chat template refuses, or fails on",
    "not_rendered": "has a content or a call that the chat template does not write",
    "bad_arguments": "has a call whose arguments are a string but no JSON object, and the template takes objects",
    "template_limit": "makes the chat template exceed the limits of a rendering",
    "control_token": 'has the text of a control token in a text, and `control_tokens` is `"reject"`; or of FIM',
    "turn_begin": "has a message to train whose begin is not certain",
    "turn_end": "has a message to train whose end is not certain",
    "turn_apart": "has a message to train that the template does not write in one piece",
    "turn_unplaced": "has a message to train whose place in the rendering is not known",
    "last_not_assistant": "ends with another role than the assistant's",
    "no_prompt": "has no message before the answer",
    "no_answer": "has nothing after the prompt",
    "missing_source": "lacks one of several outputs (`chosen` without `rejected`), or a field of its rollouts",
    "equal_sides": "has equal sides, or the same tokens for chosen and rejected",
    "prompt_differs": "has a side that neither begins with the prompt nor holds an answer alone",
    "not_prompt_first": "has a token after the first trained one that is not trained (`prompt_completion`)",
    "count_mismatch": "has lists of different lengths (4 responses, 3 rewards; 9 ids, 8 log probabilities)",
    "unknown_role": "has a message from a sender that its adapter has no role for",
    "missing_field": "lacks a field that its adapter needs",
    "field_taken": "has a field that its adapter would write",
    "no_place": "has a field for which a prompt of its adapter has no place",
    "bad_id": "has a token id that the tokenizer does not have",
    "padded": "is tokenised already, and padded",
    "labels_differ": "is tokenised already, with labels that are not its ids",
    "too_short_to_shift": "has fewer than 2 tokens, and the labels are shifted",
    "rows_without_loss": 'has nothing to train on, and `rows_without_loss` is `"reject"`',
}
"""Reason -> what is wrong with the record."""

DROPPED = {
    "empty": "has nothing left to encode",
    "too_short": "has only texts shorter than `min_chars`",
    "too_long": 'is longer than `max_chars`, or than a row (`truncation_mode: "drop"`)',
    "rows_without_loss": "has nothing to train on",
    "contaminated": "shares words with evaluation data",
    "duplicate": "is equal to an earlier record (`preprocessing.deduplicate`)",
    "not_sampled": "is left out by `output.mix`",
    "filtered": "is left out by a filter of your own, which gave `False`",
}
"""Reason -> why the config or a filter leaves the record out."""

ADVICE = {
    "bad_json": "write one JSON object on each line (json.dumps), and nothing else",
    "duplicate_key": "write each key once in an object",
    "invalid_utf8": "mend the line; if no line is UTF-8, convert the file: iconv -f WINDOWS-1252 -t UTF-8 FILE",
    "not_an_object": "write one JSON object on each line",
    "not_json": "replace NaN and infinite numbers, and give bytes as text (cast the column to string)",
    "wrong_type": 'give the field the type that the message names, or change "template" or "field" of its section',
    "bad_message": 'give every message "role" and "content" (ShareGPT\'s from/value: "input": {"adapter": "sharegpt"})',
    "bad_weight": "take the weights out of the messages, or make them 0 or 1",
    "not_text": '"input": {"not_text": "drop_parts"}, which keeps the text; or take these records out',
    "missing_source": "check the field names in the config; complete the records, or take them out",
    "template_error": "mend what the template refuses (unknown roles, tools or calls of another form), or "
    'give another template: "input": {"chat_template": ...}',
    "unknown_role": '"input": {"adapter": {"name": "sharegpt", "roles": {"<their name>": "assistant"}}}',
    "last_not_assistant": 'end these conversations with an answer, or use "action": "$role"',
    "equal_sides": "take out the pairs whose sides are equal",
    "prompt_differs": "let each side begin with the prompt as it is, or hold only what follows it",
    "control_token": '"preprocessing": {"control_tokens": "escape"}',
    "line_too_long": "run with a larger --max_line_bytes",
    "template_limit": "take out the record that makes so much text",
    "not_rendered": '"input": {"chat_template": ...} that writes them; or "not_rendered": "keep", which takes the rest',
    "bad_arguments": 'make the arguments of calls JSON objects, or "input": {"tool_arguments": "as_is"}',
    **dict.fromkeys(
        ("turn_begin", "turn_end", "turn_apart", "turn_unplaced"),
        'give a template that writes header, content and end token, message after message: "input": {"chat_template": '
        "...}; or one with {% generation %} around what the assistant says",
    ),
    "too_short": "lower preprocessing.min_chars",
    "too_long": "raise preprocessing.max_seq_len (or max_packed_len, or max_chars), or choose another truncation_mode",
    "contaminated": "check whether preprocessing.decontaminate.against names what the input holds, too",
    "not_sampled": "raise output.mix",
    "filtered": "check the filters",
}
"""Reason -> what a user can do, if there is more to say than the message of the reject."""
