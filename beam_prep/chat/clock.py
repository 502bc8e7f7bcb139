"""`strftime_now` of chat templates: the day of the config, the same on every machine."""

import re
from datetime import date as Date

_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_MONTHS = (
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)  # fmt: skip
_TOGETHER = {"D": "%m/%d/%y", "F": "%Y-%m-%d", "R": "%H:%M", "T": "%H:%M:%S"}
_DIRECTIVE = re.compile("%(-?)(.)", re.DOTALL)


class Clock:
    """`strftime_now` at the midnight of one day, as "2026-11-22".

    As `strftime` in English, but by no locale, time zone or C library. What these decide is refused.
    """

    def __init__(self, day: str) -> None:
        date = Date.fromisoformat(day)
        numbers = {"d": date.day, "m": date.month, "y": date.year % 100, "H": 0, "I": 12, "M": 0, "S": 0}
        weekday, month = _DAYS[date.weekday()], _MONTHS[date.month - 1]
        self._texts = {
            **{letter: f"{number:02}" for letter, number in numbers.items()},
            "Y": f"{date.year:04}",
            "j": f"{date.timetuple().tm_yday:03}",
            "e": f"{date.day:2}",
            "p": "AM",
            "%": "%",
            "A": weekday,
            "a": weekday[:3],
            "B": month,
            "b": month[:3],
            "h": month[:3],
        }

    def __call__(self, form: str) -> str:
        return _DIRECTIVE.sub(self._written, form)

    def _written(self, found: re.Match[str]) -> str:
        flag, letter = found.groups()
        text = self(_TOGETHER[letter]) if letter in _TOGETHER else self._texts.get(letter)
        if text is None:
            raise ValueError(f"strftime_now: {found[0]!r} is not the same on every machine; use others")
        return (text.lstrip("0 ") or "0") if flag else text
