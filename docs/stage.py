"""The sources of the site in one folder: python docs/stage.py FOLDER.

On GitHub, pages are read where they lie and link to files beside and above them. A site has no files above it: here
README becomes its first page, each program of examples/ a part of one page, each card of the zoo a page, the figures of
`bespoke paper` lie beside them, and links follow.
"""

import re
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = {"README.md": "index.md", "CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
PAGES |= {
    card.relative_to(ROOT).as_posix(): f"zoo-{card.parent.name}.md"
    for card in sorted((ROOT / "src" / "bespoke_solvers" / "zoo").glob("*/README.md"))
}
FIGURES = Path("bench/results")  # of its folders paper and zoo
LINK = re.compile(r'(?P<before>\]\(|src=")(?P<target>[^)"#:]+)(?=[)"#])')


def on_site(target: str, folder: Path) -> str:
    """Where a link to a file leads on the site, from a page in `folder` of the repository."""
    file = (folder / target).resolve()
    if not file.exists():
        raise FileNotFoundError(f"a page in {folder.name} links to {target}, which is not there")
    path = file.relative_to(ROOT)
    if path.parts[0] == "docs":
        return path.relative_to("docs").as_posix()
    if path.parts[0] == "examples":
        return f"examples.md#{path.stem}" if file.is_file() else "examples.md"
    if path.is_relative_to(FIGURES):
        return f"{path.parent.name}-{path.name}"
    return PAGES[path.as_posix()]


def staged(page: Path) -> str:
    """The text of a page, with its links as they are on the site."""
    return LINK.sub(lambda found: found["before"] + on_site(found["target"], page.parent), page.read_text())


def examples() -> str:
    """The files of examples/ as a page."""
    languages = {".json": "json", ".py": "python"}
    files = sorted(file for file in (ROOT / "examples").iterdir() if file.suffix in languages)
    parts = [f"## {f.name} {{#{f.stem}}}\n\n```{languages[f.suffix]}\n{f.read_text()}```" for f in files]
    return "\n\n".join(["# Examples", "Complete, in the folder `examples` of the repository.", *parts]) + "\n"


def main(out: Path) -> None:
    """Write all pages and pictures."""
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(ROOT / "docs", out, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    for figure in (ROOT / FIGURES).glob("*/*.png"):
        shutil.copy(figure, out / f"{figure.parent.name}-{figure.name}")
    for page in [*(ROOT / "docs").glob("*.md"), *(ROOT / name for name in PAGES)]:
        (out / PAGES.get(page.relative_to(ROOT).as_posix(), page.name)).write_text(staged(page))
    (out / "examples.md").write_text(examples())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
