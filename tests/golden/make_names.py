"""The public modules of DALI 2.4 and the public names in each: tests/golden/names.json; and the arguments of its
operators, deprecated ones included: tests/golden/arguments.json.

Run it with a Python that has DALI 2.4: python tests/golden/make_names.py. Modules are imported where that is possible;
of those that need a framework which is not there the source is read. What a module merely imports from elsewhere is
left out.
"""

import ast
import importlib
import json
import sys
import warnings
from pathlib import Path

import nvidia.dali as dali
from nvidia.dali import backend
from nvidia.dali.ops import _registry

DOCUMENTED = ["nvidia.dali.fn._conditional"]
"""Modules without a public name that DALI's documentation uses."""


def modules():
    """Name and source of every public module."""
    root = Path(dali.__file__).parent
    for source in sorted(root.rglob("*.py")):
        parts = source.relative_to(root).with_suffix("").parts
        parts = parts[:-1] if parts[-1] == "__init__" else parts
        apart = [p for p in source.parents if p.is_relative_to(root) and not (p / "__init__.py").exists()]
        if not apart and not any(part.startswith("_") for part in parts):  # folders without __init__.py are no packages
            yield ".".join(["nvidia.dali", *parts]), source


def defined(source: Path) -> set[str]:
    """Names that the module's source defines, or takes from DALI and shows."""
    tree, names, shown = ast.parse(source.read_text()), set(), None
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node in tree.body:
            names.add(node.name)
        elif isinstance(node, ast.Assign) and node in tree.body:
            for target in node.targets:
                if isinstance(target, ast.Name):
                    names.add(target.id)
                    if target.id == "__all__" and isinstance(node.value, (ast.List, ast.Tuple)):
                        shown = {e.value for e in node.value.elts if isinstance(e, ast.Constant)}
        elif isinstance(node, (ast.If, ast.Try)) and node in tree.body:
            names |= {n.name for n in node.body if isinstance(n, (ast.FunctionDef, ast.ClassDef))}
        elif isinstance(node, ast.ImportFrom) and node in tree.body and source.name == "__init__.py" and node.level:
            names |= {a.asname or a.name for a in node.names if a.name != "*"}
    return {n for n in (names if shown is None else shown) if not n.startswith("_")}


def made_by_dali(module, name: str) -> bool:
    """The module has it, and it is DALI's; of modules, its own."""
    value = getattr(module, name, None)
    if type(value).__name__ == "module":
        return value.__name__ == f"{module.__name__}.{name}"
    return value is not None and str(getattr(value, "__module__", None) or "nvidia.dali").startswith("nvidia.dali")


def defined_in(module, name: str) -> bool:
    """It was made here, or in the compiled part that this module shows."""
    value = getattr(module, name, None)
    if name.startswith("_") or not made_by_dali(module, name):
        return False
    home = str(getattr(value, "__module__", None) or "")
    return home.startswith(module.__name__) or "backend_impl" in home or type(value).__name__ == "module"


def main() -> None:
    warnings.simplefilter("ignore")
    taken = {}
    for operator in sorted(_registry._all_registered_ops()):
        schema = backend.TryGetSchema(operator)
        if schema is not None and not operator.startswith("_"):
            taken[operator.replace("__", ".")] = " ".join(sorted(schema.GetArgumentNames()))
    Path(__file__).with_name("arguments.json").write_text(json.dumps(taken, indent=0) + "\n")
    found = {}
    for name, source in modules():
        names = defined(source)
        try:
            module = importlib.import_module(name)
        except Exception:
            module = None
        if module is not None:
            shown = getattr(module, "__all__", None)
            names = {n for n in names if made_by_dali(module, n)}
            names = set(shown or names | {n for n in dir(module) if defined_in(module, n)})
        found[name] = sorted(names)
    for name in sorted(set(sys.modules) - set(found)):  # made when DALI is imported, or compiled
        inner = name.removeprefix("nvidia.dali").split(".")
        if name.startswith("nvidia.dali.") and (not any(n.startswith("_") for n in inner) or name in DOCUMENTED):
            found[name] = sorted(n for n in vars(sys.modules[name]) if not n.startswith("_"))
    Path(__file__).with_name("names.json").write_text(json.dumps(found, indent=0) + "\n")
    print(len(found), "modules", sum(map(len, found.values())), "names")


if __name__ == "__main__":
    main()
