"""Check that every relative link of the manual leads to a file, and its anchor to a heading."""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)[^)]*\)|!\[[^\]]*\]\(([^)\s]+)[^)]*\)")
FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
HIDDEN = {"node_modules", "fixtures"}


def pages() -> list[Path]:
    """Every Markdown page of the checkout, but for those of environments and fixtures."""
    return sorted(
        path
        for path in ROOT.rglob("*.md")
        if not any(part.startswith(".") or part in HIDDEN for part in path.relative_to(ROOT).parts)
        and not any(parent.is_symlink() for parent in path.parents)
    )


def anchors_of(page: Path) -> set[str]:
    """What `page.md#...` can name: its headings as the usual viewers spell them."""
    headings = re.findall(r"^#+ +(.+?) *#*$", FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links() -> list[str]:
    """One sentence for each link that leads nowhere."""
    found = []
    for page in pages():
        for match in LINK.finditer(FENCE.sub("", page.read_text())):
            link = match[1] or match[2]
            if re.match(r"[a-z][a-z0-9+.-]*:", link):
                continue
            name, _, anchor = link.partition("#")
            target = (page.parent / name) if name else page
            place = f"{page.relative_to(ROOT)}: {link}"
            if not target.exists():
                found.append(f"{place} is no file")
            elif anchor and target.suffix == ".md" and anchor not in anchors_of(target):
                found.append(f"{place} is no heading")
    return found


if __name__ == "__main__":
    broken = broken_links()
    print("\n".join(broken) or f"{len(pages())} pages, every link leads somewhere")
    sys.exit(1 if broken else 0)
