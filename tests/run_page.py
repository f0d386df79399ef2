"""The blocks of a page in one process: pairs of language and code on stdin, what each printed on stdout, both as JSON.

`bespoke` and `python` are called here instead of being started: most of their time would go into importing torch.
"""

import contextlib
import io
import json
import runpy
import shlex
import sys

from bespoke_solvers.cli import main


def run_command(line: str) -> None:
    program, *arguments = shlex.split(line)
    match program:
        case "bespoke":
            try:
                main(arguments)
            except SystemExit as end:
                if end.code:
                    raise
        case "python":
            runpy.run_path(arguments[0], run_name="__main__")
        case _:
            raise ValueError(f"expected bespoke or python, got {line}")


def run(language: str, code: str) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        if language == "python":
            exec(code, {"__name__": "__main__"})
        else:
            for line in code.splitlines():
                run_command(line)
    return printed.getvalue()


if __name__ == "__main__":
    sys.path.insert(0, "")
    json.dump([run(*block) for block in json.load(sys.stdin)], sys.stdout)
