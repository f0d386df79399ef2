"""The docstrings' lines `name: what it is`, which are read in the source, as lists on the site."""

import re

import griffe

LINE = re.compile(r"^((?:\w+, )*\w+): ", re.MULTILINE)


class Lists(griffe.Extension):
    """Makes an item of each such line, after the first paragraph."""

    def on_object(self, *, obj: griffe.Object, **_: object) -> None:
        """Rewrite the docstring of whatever was found."""
        if obj.docstring and (obj.is_function or obj.is_class):
            first, blank, rest = obj.docstring.value.partition("\n\n")
            obj.docstring.value = first + blank + LINE.sub(r"- `\1`: ", rest)
