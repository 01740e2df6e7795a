#!/usr/bin/env python3
"""Makes docs/api.md from the comments of the public header.

The header is the truth; this program only rearranges it. A comment belongs to the declaration below it. Declarations
that follow each other without an empty line share the comment above the first of them.

  tools/dev/apidoc.py           writes docs/api.md
  tools/dev/apidoc.py --check   writes nothing; fails if docs/api.md is not what would be written

Both fail if a public function has no comment.
"""

import argparse
import dataclasses
import pathlib
import re
import sys
import textwrap

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
WIDTH = 119  # columns of a line, where it is no table or code
SECTION = re.compile(r"/\*\s*-{2,}\s*(.*?)\s*-{2,}\s*\*/$")
IDENTIFIER = re.compile(r"\*?\b(?:trib|TRIB)_\w+(?:\.\w+)?\*?|(?<![\w*])\*[a-z]\w*")
# Macros that serve the compilation of the header only.
HIDDEN_MACROS = {"TRIBUTARY_H", "TRIB_API", "TRIB_CHECKED", "TRIB_ANY_THREAD"}


class HeaderError(Exception):
    """The header has a form that this program does not understand."""


@dataclasses.dataclass
class Item:
    kind: str  # "function", "type" or "macro"
    name: str
    text: str  # as it stands in the header
    line: int


@dataclasses.dataclass
class Group:
    comment: str
    items: list


@dataclasses.dataclass
class Section:
    title: str
    groups: list


def skip_comment(text, at):
    end = text.find("*/", at)
    if end < 0:
        raise HeaderError(f"line {line_of(text, at)}: comment without an end")
    return end + 2


def line_of(text, at):
    return text.count("\n", 0, at) + 1


def end_of_directive(text, at):
    """Returns the end of a preprocessor line, continuation lines included."""
    while True:
        end = text.find("\n", at)
        if end < 0:
            return len(text)
        if text[end - 1] != "\\":
            return end
        at = end + 1


def end_of_declaration(text, at):
    """Returns the position behind the first semicolon outside braces and comments."""
    depth = 0
    start = at
    while at < len(text):
        if text.startswith("/*", at):
            at = skip_comment(text, at)
            continue
        if text[at] == "{":
            depth += 1
        elif text[at] == "}":
            depth -= 1
        elif text[at] == ";" and depth == 0:
            return at + 1
        at += 1
    raise HeaderError(f"line {line_of(text, start)}: declaration without an end")


def with_trailing_comment(text, end):
    """Reads a comment behind a declaration on the same line, which belongs to it."""
    match = re.compile(r"[ \t]*/\*").match(text, end)
    return skip_comment(text, match.end() - 2) if match else end


def name_declaration(text, line):
    bare = re.sub(r"/\*.*?\*/", " ", text, flags=re.S)
    if re.match(r"(?:static|extern)\b", bare):
        raise HeaderError(f"line {line}: neither a type nor a function of the library: {bare.splitlines()[0]}")
    if bare.startswith("typedef"):
        match = (
            re.match(r"typedef\s+(?:struct|enum|union)\s+\w*\s*\{.*\}\s*(\w+)\s*;$", bare, re.S)
            or re.search(r"\(\s*\*\s*(\w+)\s*\)\s*\(", bare)
            or re.match(r"typedef\s+[^(]*?(\w+)\s*;$", bare, re.S)
        )
        kind = "type"
    elif re.match(r"(?:struct|enum|union)\s+\w+\s*(?:;|\{)", bare):
        return None  # a type of another header
    else:
        match = re.search(r"(\w+)\s*\(", bare)
        kind = "function"
        if match and not bare.startswith("TRIB_API"):
            raise HeaderError(f"line {line}: {match.group(1)} is public but lacks TRIB_API")
    if not match:
        raise HeaderError(f"line {line}: cannot tell what is declared: {bare.splitlines()[0]}")
    return Item(kind, match.group(1), text, line)


def read_tokens(text):
    """Yields (kind, value, gap): section, comment or item; gap tells whether an empty line stands before it."""
    at = 0
    while at < len(text):
        blank = re.compile(r"\s*").match(text, at)
        gap = blank.group().count("\n") > 1
        at = blank.end()
        if at == len(text):
            return
        line = line_of(text, at)
        if text.startswith("/*", at):
            end = skip_comment(text, at)
            section = SECTION.match(text[at:end])
            yield ("section", section.group(1), gap) if section else ("comment", text[at:end], gap)
        elif text[at] == "#":
            end = end_of_directive(text, at)
            macro = re.match(r"#\s*define\s+(\w+)", text[at:end])
            if macro and macro.group(1) not in HIDDEN_MACROS:
                yield "item", Item("macro", macro.group(1), text[at:end], line), gap
            else:
                yield "skip", None, gap
        elif text.startswith('extern "C"', at):
            end = text.index("{", at) + 1
            yield "skip", None, gap
        elif text[at] == "}":
            end = at + 1
            yield "skip", None, gap
        else:
            end = with_trailing_comment(text, end_of_declaration(text, at))
            declared = text[at:end]
            item = name_declaration(re.sub(r";\s*/\*.*\*/$", ";", declared, flags=re.S), line)
            if item is None:
                yield "skip", None, gap
            else:
                item.text = declared
                yield "item", item, gap
        at = end


def parse(text):
    """Returns the comment at the top of the file, and the sections behind it."""
    opening = ""
    sections = [Section("Version", [])]
    comment, joined = "", False
    for kind, value, gap in read_tokens(text):
        if kind == "section":
            sections.append(Section(value, []))
            comment, joined = "", False
        elif kind == "comment":
            if not opening:
                opening = value
                continue
            comment, joined = value, False
        elif kind == "skip":
            comment, joined = "", False
        elif joined and not gap:
            sections[-1].groups[-1].items.append(value)
        else:
            sections[-1].groups.append(Group(comment, [value]))
            comment, joined = "", True
    return opening, [section for section in sections if section.groups]


def statuses_of(text):
    start = text.find("#define TRIB_STATUS_LIST(")
    if start < 0:
        raise HeaderError("TRIB_STATUS_LIST is missing")
    rows = re.findall(r'X\((\w+),\s*(-?\d+),\s*"([^"]*)"\)', text[start : end_of_directive(text, start)])
    if not rows:
        raise HeaderError("TRIB_STATUS_LIST is empty")
    return rows


def bare_lines(comment):
    body = comment[2:-2]
    return [
        re.sub(r"^\s*\* ?", "", line).rstrip() if index else line.strip() for index, line in enumerate(body.split("\n"))
    ]


def mark_up(text, links):
    """Turns names into code, known names into links, and escapes Markdown's own characters."""
    parts, at = [], 0
    for match in IDENTIFIER.finditer(text):
        parts.append(re.sub(r"([*<>|])", r"\\\1", text[at : match.start()]))
        name = match.group()
        target = links.get(name.strip("*").split(".")[0])
        parts.append(f"[`{name}`](#{target})" if target else f"`{name}`")
        at = match.end()
    parts.append(re.sub(r"([*<>|])", r"\\\1", text[at:]))
    return "".join(parts)


def prose(comment, links):
    """Returns the paragraphs; lines such as "THREADS    text" begin an entry of a list."""
    blocks, fresh = [], True
    for line in bare_lines(comment):
        entry = re.match(r"([A-Z]{4,})\s{2,}(.*)", line)
        if entry:
            blocks.append(f"- **{entry.group(1)}** {mark_up(entry.group(2), links)}")
        elif not line.strip():
            fresh = True
            continue
        elif fresh or not blocks:
            blocks.append(mark_up(line.strip(), links))
        else:
            blocks[-1] += " " + mark_up(line.strip(), links)
        fresh = False
    text = ""
    for index, block in enumerate(blocks):
        block = textwrap.fill(
            block,
            WIDTH,
            subsequent_indent="  " if block.startswith("- ") else "",
            break_long_words=False,
            break_on_hyphens=False,
        )
        close = index and block.startswith("- ") and blocks[index - 1].startswith("- ")
        text += ("" if index == 0 else "\n" if close else "\n\n") + block
    return text


def first_sentence(comment, links):
    """Returns the text up to the first full stop or semicolon outside parentheses, without a leading mode."""
    text = " ".join(line.strip() for line in bare_lines(comment) if line.strip())
    text = re.sub(r"^TRIB_MODE_\w+: ", "", text)
    depth = 0
    for at, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if depth == 0 and letter in ".;" and text[at + 1 : at + 2] in ("", " ") and text[at - 3 : at] != "...":
            return mark_up(text[:at], links)
    return mark_up(text, links)


def status_table(statuses):
    rows = ["| code | number | text |", "| --- | --- | --- |"]
    rows += [f'| <a id="{name}"></a>`{name}` | {number} | {text} |' for name, number, text in statuses]
    return "\n".join(rows)


def render_group(group, links, statuses):
    names = [item.name for item in group.items]
    shown = ", ".join(f"`{name}`" for name in names)
    out = ["".join(f'<a id="{name}"></a>' for name in names), f"### {shown}", ""]
    if group.comment:
        out += [prose(group.comment, links), ""]
    if "TRIB_STATUS_LIST" in names:
        return out + [status_table(statuses), ""]
    if names == ["trib_status"]:
        return out + ["An enumeration of the codes above.", ""]
    return out + ["```c"] + [item.text for item in group.items] + ["```", ""]


def render_index(sections, links):
    out = ["| function | in short |", "| --- | --- |"]
    for section in sections:
        for group in section.groups:
            functions = [item.name for item in group.items if item.kind == "function"]
            if functions:
                shown = ", ".join(f"[`{name}`](#{name})" for name in functions)
                out.append(f"| {shown} | {first_sentence(group.comment, links)} |")
    return out + [""]


def link_targets(sections, statuses):
    """Returns the target of a name: itself, or the enumeration that it belongs to."""
    targets = {}
    for section in sections:
        for item in (item for group in section.groups for item in group.items):
            targets[item.name] = item.name
            if item.text.startswith("typedef enum"):
                for constant in re.findall(r"^\s*(TRIB_\w+) =", item.text, re.M):
                    targets[constant] = item.name
    targets.update({name: name for name, _, _ in statuses})
    return targets


def render(text):
    opening, sections = parse(text)
    statuses = statuses_of(text)
    links = link_targets(sections, statuses)
    title, *rest = bare_lines(opening)
    if not title:
        title, *rest = rest
    out = [
        "<!-- Made by tools/dev/apidoc.py from api/tributary.h. Change the header, then run it again. -->",
        "# API reference",
        "",
        mark_up(title.strip(), links),
        "",
    ]
    out += [prose("/*" + "\n * ".join([""] + rest) + "*/", links), ""]
    out += ["A function marked `TRIB_CHECKED` returns a status that must not be ignored: the compiler warns.", ""]
    out += ["## Functions at a glance", ""] + render_index(sections, links)
    for section in sections:
        out += [f"## {section.title}", ""]
        for group in section.groups:
            out += render_group(group, links, statuses)
    undocumented = [
        f"{item.name} (line {item.line})"
        for section in sections
        for group in section.groups
        for item in group.items
        if item.kind == "function" and not group.comment
    ]
    return "\n".join(out).rstrip() + "\n", undocumented


def main():
    parser = argparse.ArgumentParser(description="makes docs/api.md from the comments of api/tributary.h")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if docs/api.md is stale")
    parser.add_argument("--header", type=pathlib.Path, default=ROOT / "api" / "tributary.h")
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / "docs" / "api.md")
    options = parser.parse_args()
    try:
        page, undocumented = render(options.header.read_text(encoding="utf-8"))
    except (HeaderError, OSError) as error:
        print(f"apidoc: {options.header}: {error}", file=sys.stderr)
        return 1
    for name in undocumented:
        print(f"apidoc: {options.header}: {name} has no comment", file=sys.stderr)
    if options.check:
        present = options.output.read_text(encoding="utf-8") if options.output.exists() else ""
        if present != page:
            print(f"apidoc: {options.output} is stale: run tools/dev/apidoc.py", file=sys.stderr)
            return 1
    else:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(page, encoding="utf-8")
    return 1 if undocumented else 0


if __name__ == "__main__":
    sys.exit(main())
