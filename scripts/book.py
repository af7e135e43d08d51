#!/usr/bin/python3
"""Makes the book in target/book from the pages of the repository, and checks their links.

`docs/SUMMARY.md` is the table of contents; its links, as all links between pages, are those of the repository. In the book they lead to the
chapters; a link to what is no chapter (a test, a folder) is text there. The page of a package is shown apart from the repository, on docs.rs
too, so it names other pages (`docs/costs.md`); in the book these are links.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BOOK = ROOT / "target" / "book"
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)\s]+)\)")
NAMED = re.compile(r"(?<!\[)`([\w./-]+\.md)`")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
dead = []


def slug(heading):
    """The anchor that mdbook and the common hosts give a heading."""
    text = re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
    return re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", text))


def anchors(page):
    text = FENCE.sub("", page.read_text())
    return {slug(line.lstrip("#")) for line in text.splitlines() if line.startswith("#")}


def chapter(page):
    """Where a page of the repository is in the book."""
    return str(page.relative_to(ROOT)).replace("README", "page").replace("/", "-").lower()


def rewritten(page, chapters):
    def link(found):
        text, target = found.groups()
        guide = ROOT / "docs" / "guide" / f"{target.removeprefix('crate::guide::')}.md"
        if target.startswith("crate::guide::") and guide in chapters:
            return f"[{text}]({chapter(guide)})"
        if target.startswith("crate::"):
            return f"[{text}](https://docs.rs/onelock/latest/onelock/?search={target.removeprefix('crate::')})"
        if re.match(r"\w+:", target):
            return found.group(0)
        if page.name == "README.md" and (page.parent / "LICENSE-MIT").exists() and not target.startswith("#"):
            dead.append(f"{page.relative_to(ROOT)}: {target} is not where the page of the package is shown")
        path, _, anchor = target.partition("#")
        to = (page.parent / path).resolve() if path else page
        if not to.exists():
            dead.append(f"{page.relative_to(ROOT)}: {target} is not there")
        elif anchor and anchor not in anchors(to):
            dead.append(f"{page.relative_to(ROOT)}: {target} has no such heading")
        if to not in chapters:
            return text
        return f"[{text}]({chapter(to)}{'#' + anchor if anchor else ''})"

    text, code = page.read_text(), []

    def aside(found):
        # Lines of an example that only its compiler needs are hidden, as in rustdoc.
        code.append(re.sub(r"^# .*\n", "", found.group(0), flags=re.MULTILINE))
        return f"\0{len(code) - 1}\0"

    def named(found):
        to = ROOT / found.group(1)
        return f"[{found.group(0)}]({chapter(to)})" if to in chapters else found.group(0)

    text = NAMED.sub(named, LINK.sub(link, FENCE.sub(aside, text)))
    return re.sub(r"\0(\d+)\0", lambda found: code[int(found.group(1))], text)


summary = ROOT / "docs" / "SUMMARY.md"
pages = [(summary.parent / target).resolve() for _, target in LINK.findall(summary.read_text())]
missing = [str(page.relative_to(ROOT)) for page in pages if not page.exists()]
if missing:
    sys.exit(f"docs/SUMMARY.md: not there: {', '.join(missing)}")
shutil.rmtree(BOOK, ignore_errors=True)
(BOOK / "src").mkdir(parents=True)
(BOOK / "book.toml").write_text(
    '[book]\ntitle = "onelock"\nlanguage = "en"\n[output.html]\ndefault-theme = "light"\n[output.html.playground]\nrunnable = false\n'
)
(BOOK / "src" / "SUMMARY.md").write_text(rewritten(summary, pages))
for page in pages:
    (BOOK / "src" / chapter(page)).write_text(rewritten(page, pages))
(BOOK / "src" / "docs").mkdir()
shutil.copy(ROOT / "docs" / "bench.png", BOOK / "src" / "docs")
# Pages that are no chapters have links, too.
others = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout.split()
for page in (ROOT / other for other in others):
    if page not in pages and page != summary:
        rewritten(page, pages)
if dead:
    sys.exit("\n".join(dead))
print(f"{len(pages)} chapters, no dead link")
installed = os.path.join(os.environ.get("CARGO_HOME", Path.home() / ".cargo"), "bin")
mdbook = shutil.which("mdbook", path=os.pathsep.join([os.environ["PATH"], installed]))
if mdbook is None:
    sys.exit("mdbook is not installed: cargo install mdbook --locked --no-default-features")
sys.exit(subprocess.run([mdbook, "build"], cwd=BOOK, check=False).returncode)
