"""Renders messages by plans, or by jinja where no plan fits."""

from typing import Any

from beam_prep.core.chat.recorded.layout import RenderedPieces
from beam_prep.core.chat.template import ChatTemplate, RenderedChat
from beam_prep.core.data.block import Reject
from beam_prep.core.data.schema import Output
from beam_prep.core.pieces.voice import Voice


class Renderer:
    """Renders the messages of an output.

    Args:
        voice: with a template.
        output: whose fields messages of rejects name.

    Attributes:
        template: the chat template.
        by_jinja: something was not rendered by a plan since this was set to False.
    """

    def __init__(self, voice: Voice, output: Output) -> None:
        assert voice.template is not None
        self.template: ChatTemplate = voice.template
        self.by_jinja = False
        self._reference = voice.reference or voice.template
        self._fields = [section.field for section in output.sections]

    def text(self, messages: list[dict[str, Any]], add_prompt: bool, variables: dict[str, Any]) -> str:
        """The text of messages, with the generation prompt after it if `add_prompt`.

        Raises:
            Reject: `template_error`.
        """
        planned = self.template.planned(messages, **variables, add_generation_prompt=add_prompt)
        if planned is not None:
            return "".join(planned.pieces)
        self.by_jinja = True
        # The reference has no plans: none is looked for a second time.
        return self._reference.render(messages, add_prompt, **variables)

    def chat(
        self, messages: list[dict[str, Any]], variables: dict[str, Any], planned: RenderedPieces | None
    ) -> RenderedChat:
        """A conversation as text, with the places of its messages and generation blocks.

        Args:
            messages, variables: of the conversation.
            planned: what `template.planned` gives for them.

        Raises:
            Reject: `template_error`.
        """
        if planned is not None and (chat := self.template.chat_of(planned)) is not None:
            return chat
        self.by_jinja = True
        try:
            return self._reference.render_chat(messages, **variables)
        except Reject as reject:
            fields = ", ".join(map(repr, self._fields))
            empty = [place for place, message in enumerate(messages) if message.get("content") is None]
            lacks = f" (message {empty[0]} has no content)" if empty else ""
            raise Reject(reject.reason, f"field {fields}{lacks}: {reject.message}") from None
