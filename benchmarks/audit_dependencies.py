"""List the newest versions of everything that flexconv depends on, and the vulnerabilities that PyPI knows of them.

    python -m benchmarks.audit_dependencies [LOG]

Reads https://pypi.org/pypi/NAME/json for every distribution that the extras of pyproject.toml need in this environment,
directly or through others. PyPI lists there the vulnerabilities of the newest version. `pip-audit` checks the versions
that are installed and is the better tool where it can reach PyPI's page of each version.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
import sys
import tomllib
import urllib.request
from pathlib import Path

ROOT = Path(__file__).parents[1]


def name_of(requirement: str) -> str:
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert found is not None
    return re.sub(r"[-_.]+", "-", found[0]).lower()


def needed() -> dict[str, str]:
    """The installed versions of all dependencies, by name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    todo = [*project["dependencies"], *(each for extra in project["optional-dependencies"].values() for each in extra)]
    found: dict[str, str] = {}
    while todo:
        name = name_of(todo.pop())
        if name in found:
            continue
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # of another platform, or an extra that is not installed
        found[name] = distribution.version
        todo += [each for each in distribution.requires or () if "extra ==" not in each]
    return dict(sorted(found.items()))


def main(log: Path | None = None) -> None:
    packages = {}
    for name, installed in needed().items():
        with urllib.request.urlopen(f"https://pypi.org/pypi/{name}/json", timeout=60) as answer:
            page = json.load(answer)
        known = [each["id"] for each in page["vulnerabilities"] if not each.get("withdrawn")]
        packages[name] = {"installed": installed, "newest": page["info"]["version"], "of newest": known}
    summary = {
        "what": "vulnerabilities of the newest version of each dependency, as listed by PyPI",
        "command": "python -m benchmarks.audit_dependencies",
        "packages": len(packages),
        "installed is newest": sum(each["installed"].split("+")[0] == each["newest"] for each in packages.values()),
        "with vulnerabilities": sorted(name for name, each in packages.items() if each["of newest"]),
        "versions": {name: f"{each['installed']}, newest {each['newest']}" for name, each in packages.items()},
    }
    text = json.dumps(summary, indent=2) + "\n"
    if log is not None:
        log.write_text(text)
    print(text, end="")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
