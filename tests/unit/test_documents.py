"""What the documents refer to exists: files, functions, limits, headings."""

import ast
import importlib
import re
from pathlib import Path

import timer_client
import timer_service
from tests.support.documents import ROOT, code_words, read, table

ARCHITECTURE = "docs/architecture.md"
DOCUMENTS = sorted(
    str(path.relative_to(ROOT))
    for path in [*ROOT.glob("*.md"), *ROOT.glob("[bc]*/README.md"), *(ROOT / "docs").rglob("*.md")]
)
PACKAGE = Path(timer_service.__file__).parent
CLIENT = Path(timer_client.__file__).parent
FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef

_LINK = re.compile(r"\]\((?!https?://)([^)#\s]*)(?:#([^)\s]+))?\)")
_NOT_PLAIN = re.compile(
    r"\b(?:[Aa]new|for ever|at the most|Tell whether|Take note|(?:timers|commands|events|lines) a second)\b"
)
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def test_every_link_leads_somewhere() -> None:
    broken = []

    for document in DOCUMENTS:
        for target, heading in _LINK.findall(read(document)):
            path = (ROOT / document).parent / target if target else ROOT / document
            if not path.exists() or (heading and heading not in _anchors(path)):
                broken.append(f"{document}: {target}#{heading}")

    assert broken == []


def test_every_test_that_is_named_exists() -> None:
    named = {
        (document, path)
        for document in DOCUMENTS
        for path in re.findall(r"\btests/[\w/]+\.py\b", read(document))
    }

    assert {(document, path) for document, path in named if not (ROOT / path).is_file()} == set()


def test_the_english_is_plain() -> None:
    found = {document: _NOT_PLAIN.findall(read(document)) for document in DOCUMENTS}

    assert {document: words for document, words in found.items() if words} == {}


def test_the_english_of_the_code_is_plain() -> None:
    sources = [*PACKAGE.rglob("*.py"), *CLIENT.rglob("*.py"), ROOT / "Makefile", ROOT / "Dockerfile"]

    assert {
        path.name: found for path in sources if (found := _NOT_PLAIN.findall(path.read_text("utf-8")))
    } == {}


def test_every_file_and_name_in_the_architecture_exists() -> None:
    references = re.findall(r"([\w/]+\.py)::([\w.]+)", read(ARCHITECTURE))

    missing = [(file, name) for file, name in references if not _exists(file, name)]

    assert len(references) > 30
    assert missing == []


def test_every_file_drawn_in_the_architecture_exists() -> None:
    drawn = re.findall(r"[\w/]+\.py\b", _LINK.sub("]", read(ARCHITECTURE)))

    assert [name for name in drawn if not _path(name).is_file()] == []


def test_one_timer_is_followed_in_at_most_fifteen_steps_each_linked_to_a_function() -> None:
    _, _, rest = read(ARCHITECTURE).partition("## Follow one timer through the code\n")
    steps = re.findall(r"^\d+\. \[`([\w/]+\.py)::([\w.]+)`\]\(([^)]+)\)", rest, re.MULTILINE)

    assert len(steps) == len(re.findall(r"^\d+\. ", rest.partition("\n## ")[0], re.MULTILINE))
    assert 10 <= len(steps) <= 15
    assert [step for step in steps if not _is_function(*step[:2])] == []
    assert [step for step in steps if (ROOT / "docs" / step[2]).resolve() != _path(step[0])] == []


def test_every_limit_has_the_value_that_the_architecture_gives() -> None:
    described = {code_words(row["limit"])[0]: row["value"] for row in table(ARCHITECTURE, "limit")}

    assert described == {reference: _value(*reference.split("::")) for reference in described}


def test_the_ports_and_their_methods_are_those_of_the_code() -> None:
    described = {
        code_words(row["port"])[0]: code_words(row["methods"]) for row in table(ARCHITECTURE, "port")
    }

    assert described == {
        f"ports/{path.name}::{node.name}": [each.name for each in node.body if isinstance(each, FUNCTION)]
        for path in sorted((PACKAGE / "ports").glob("*.py"))
        for node in ast.parse(path.read_text("utf-8")).body
        if isinstance(node, ast.ClassDef) and "Protocol" in {ast.unparse(base) for base in node.bases}
    }


def test_the_modules_are_those_of_the_tree() -> None:
    described = [name for row in table(ARCHITECTURE, "module") for name in code_words(row["module"])]

    found = {f"{path.name}/" for path in PACKAGE.iterdir() if (path / "__init__.py").is_file()}
    found |= {path.name for path in PACKAGE.glob("*.py")} - {"__init__.py", "__main__.py"}
    assert sorted(described) == sorted(found)


def test_each_module_imports_what_the_table_allows() -> None:
    for row in table(ARCHITECTURE, "module"):
        names = [name.removesuffix(".py").rstrip("/") for name in code_words(row["module"])]
        if row["may import"] == "all of the above":
            continue
        imported = set[str]().union(*map(_imported, names)) - set(names)
        allowed = set(code_words(row["may import"]))
        assert imported <= allowed, names


def test_the_index_of_decisions_lists_every_one_by_its_title() -> None:
    listed = {row["number"]: row["decision"] for row in table("docs/adr/README.md", "number")}

    expected = {}
    for path in sorted((ROOT / "docs/adr").glob("[0-9]*.md")):
        number, title = path.read_text("utf-8").splitlines()[0].removeprefix("# ").split(" ", 1)
        expected[f"[{number}]({path.name})"] = title
    assert listed == expected


def test_the_readme_stays_short() -> None:
    text = read("README.md")

    assert len(text.splitlines()) <= 130
    assert len(text.split()) <= 900


def test_the_map_of_the_documents_lists_every_page() -> None:
    listed = {target for target, _ in _LINK.findall(read("docs/README.md"))}

    pages = {path.name for path in (ROOT / "docs").glob("*.md")} - {"README.md"}
    assert pages <= listed


def test_the_guide_for_contributors_lists_every_make_target() -> None:
    listed = {
        word.removeprefix("make ")
        for row in table("CONTRIBUTING.md", "command")
        for word in code_words(row["command"])
    }

    targets = re.findall(r"^([a-z-]+):.*## ", read("Makefile"), re.MULTILINE)
    assert listed == set(targets) - {"help"}


def test_the_guide_for_contributors_lists_every_folder_of_tests() -> None:
    listed = {code_words(row["folder"])[0] for row in table("CONTRIBUTING.md", "folder")}

    assert listed == {f"tests/{path.parent.name}" for path in (ROOT / "tests").glob("*/__init__.py")}


def test_the_fixtures_that_contributors_are_told_of_exist() -> None:
    named = re.findall(r"`(\w+)`", read("CONTRIBUTING.md").partition("- Fixtures: ")[2].partition("\n\n")[0])

    found = "".join(path.read_text("utf-8") for path in (ROOT / "tests").rglob("conftest.py"))
    assert named
    assert [name for name in named if f"def {name}(" not in found] == []


def test_the_changelog_begins_with_this_version() -> None:
    versions = re.findall(r"^## (\d\S+) - \d{4}-\d\d-\d\d$", read("CHANGELOG.md"), re.MULTILINE)

    assert versions[0] == timer_service.__version__


def _imported(module: str) -> set[str]:
    """Return the top-level modules of the package that a module or a folder of them imports."""
    files = [PACKAGE / f"{module}.py", *(PACKAGE / module).rglob("*.py")]
    imports = [
        name.removeprefix("timer_service.").split(".")[0]
        for file in files
        if file.is_file()
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module
        for name in ([node.module] if node.module != "timer_service" else [each.name for each in node.names])
        if node.module.partition(".")[0] == "timer_service"
    ]
    return set(imports) - {module, "__version__"}


def _anchors(path: Path) -> set[str]:
    return {_anchor(heading) for heading in _HEADING.findall(path.read_text("utf-8"))}


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _path(file: str) -> Path:
    is_clients = file.startswith("timer_client/")
    return CLIENT.parent / file if is_clients else PACKAGE / file


def _exists(file: str, name: str) -> bool:
    return name in _named(file)


def _is_function(file: str, name: str) -> bool:
    return isinstance(_named(file).get(name), FUNCTION)


def _named(file: str) -> dict[str, ast.stmt]:
    path = _path(file)
    return _names(ast.parse(path.read_text("utf-8")).body) if path.is_file() else {}


def _names(body: list[ast.stmt], prefix: str = "") -> dict[str, ast.stmt]:
    """Return what a module or a class defines, by its dotted name."""
    names: dict[str, ast.stmt] = {}
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names[prefix + node.name] = node
        if isinstance(node, ast.ClassDef):
            names |= _names(node.body, f"{prefix}{node.name}.")
        targets = node.targets if isinstance(node, ast.Assign) else []
        targets = [node.target] if isinstance(node, ast.AnnAssign) else targets
        names |= {prefix + target.id: node for target in targets if isinstance(target, ast.Name)}
    return names


def _value(file: str, name: str) -> str:
    package = "" if file.startswith("timer_client/") else "timer_service."
    module = importlib.import_module(package + file.removesuffix(".py").replace("/", "."))
    value = getattr(module, name)
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"
