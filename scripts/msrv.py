#!/usr/bin/python3
"""No dependency of a crate asks for a newer compiler than the crate promises, and none promises less than it could.

What the code itself uses of the standard library clippy compares with the same promise (`incompatible_msrv`).
"""

import json
import subprocess
import sys

# What the code itself needs: `if let … && let …` came with the first, `File::try_lock` with the second.
LEAST = (1, 88)
OWN = {"onelock-testbed": (1, 89)}


def version(package):
    text = package["rust_version"] or "1.0"
    return tuple(int(part) for part in text.split(".")[:2])


command = ["cargo", "metadata", "--format-version", "1", "--all-features", "--locked"]
metadata = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
packages = {package["id"]: package for package in metadata["packages"]}
members = set(metadata["workspace_members"])
nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}


def needed(package):
    """What is always built: not what tests need, nor the stores of the facade, which are chosen by feature."""
    facade = packages[package]["name"] == "onelock"
    chosen = {d["name"] for d in packages[package]["dependencies"] if facade and d["optional"]}
    for dependency in nodes[package]["deps"]:
        kinds = [kind for kind in dependency["dep_kinds"] if kind["target"] is None]
        built = any(kind["kind"] in (None, "build") for kind in kinds)
        if built and packages[dependency["pkg"]]["name"] not in chosen:
            yield dependency["pkg"]


wrong = False
for member in sorted(members):
    seen, left = set(), [member]
    while left:
        one = left.pop()
        if one not in seen:
            seen.add(one)
            left.extend(needed(one))
    name, promised = packages[member]["name"], version(packages[member])
    newest = max((packages[one] for one in seen - {member}), key=lambda one: (version(one), one["name"]))
    lowest = max(LEAST, OWN.get(name, LEAST), version(newest))
    print(f"{name}: {promised[0]}.{promised[1]}; {newest['name']} {newest['version']} needs {newest['rust_version']}")
    if promised != lowest:
        print(f"    the lowest is {lowest[0]}.{lowest[1]}")
        wrong = True
sys.exit(wrong)
