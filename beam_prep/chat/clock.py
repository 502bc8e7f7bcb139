"""`strftime_now` of chat templates: the day of the config, the same on every machine."""

import re
from datetime import date as Date

from beam_prep.chat.limits import Unwritable

_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_MONTHS = (
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)  # fmt: skip
_COMPOUND = {
    "c": "%a %b %e %H:%M:%S %Y", "D": "%m/%d/%y", "F": "%Y-%m-%d", "h": "%b", "r": "%I:%M:%S %p", "R": "%H:%M",
    "T": "%H:%M:%S", "x": "%m/%d/%y", "X": "%H:%M:%S",
}  # fmt: skip
_DIRECTIVE = re.compile("%([-_0^]?)(.)", re.DOTALL)


class Clock(Unwritable):
    """`strftime_now` at the midnight of one day.

    As `strftime` in English, but by no locale, time zone or C library: on every machine the same.
    """

    def __init__(self, day: str) -> None:
        self._day = Date.fromisoformat(day)

    def __call__(self, form: str) -> str:
        return _DIRECTIVE.sub(self._written, form)

    def _written(self, found: re.Match[str]) -> str:
        flag, letter = found.groups()
        if letter in _COMPOUND:
            text = self(_COMPOUND[letter])
        elif letter in (numbers := self._numbers()):
            number, width = numbers[letter]
            fill = {"-": "", "_": " ", "0": "0"}.get(flag, " " if letter in "ekl" else "0")
            text = str(number).rjust(width, fill) if fill else str(number)
        else:
            texts = self._texts()
            if letter not in texts:
                raise ValueError(f"strftime_now: {found[0]!r} is not the same on every machine, or nothing")
            text = texts[letter]
        return text.upper() if flag == "^" else text

    def _numbers(self) -> dict[str, tuple[int, int]]:
        """Directives that are numbers: (number, width)."""
        day = self._day
        year, week, weekday = day.isocalendar()
        of_year = day.timetuple().tm_yday
        return {
            "C": (day.year // 100, 2), "d": (day.day, 2), "e": (day.day, 2), "f": (0, 6), "g": (year % 100, 2),
            "G": (year, 4), "H": (0, 2), "I": (12, 2), "j": (of_year, 3), "k": (0, 2), "l": (12, 2), "M": (0, 2),
            "m": (day.month, 2), "S": (0, 2), "u": (weekday, 1), "U": ((of_year + 6 - weekday % 7) // 7, 2),
            "V": (week, 2), "w": (weekday % 7, 1), "W": ((of_year + 7 - weekday) // 7, 2), "y": (day.year % 100, 2),
            "Y": (day.year, 4),
        }  # fmt: skip

    def _texts(self) -> dict[str, str]:
        day, month = _DAYS[self._day.weekday()], _MONTHS[self._day.month - 1]
        names = {"a": day[:3], "A": day, "b": month[:3], "B": month, "p": "AM", "P": "am"}
        return {**names, "n": "\n", "t": "\t", "z": "", "Z": "", "%": "%"}
