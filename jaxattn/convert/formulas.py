"""The formula that a class computes, read off the source of its forward, whatever it calls its variables."""

import ast
import inspect
import textwrap


def formula_of(kind: type) -> str | None:
    """The statements of `forward`, and of `_norm` if there is one, in a form that `formula` gives too.

    None where there is no source to read.
    """
    methods = [getattr(kind, name, None) for name in ("forward", "_norm")]
    try:
        sources = [inspect.getsource(method) for method in methods if inspect.isfunction(method)]
        return formula(*sources)
    except (OSError, TypeError, SyntaxError):
        return None


def formula(*sources: str) -> str:
    """Methods without their docstrings, decorators and annotations, and with numbered names of arguments and values.

    What a norm adds to the mean is `self.eps`, whatever the class calls it.
    """
    parsed = [ast.parse(textwrap.dedent(source)).body[0] for source in sources]
    return "\n".join(_canonical(method) for method in parsed if isinstance(method, ast.FunctionDef))


def _canonical(method: ast.FunctionDef) -> str:
    body, given = method.body, method.args
    if isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
        body = body[1:]
    arguments = [argument.arg for argument in (*given.posonlyargs, *given.args)]
    nodes = [node for statement in body for node in ast.walk(statement)]
    assigned = [node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    number = {name: f"v{place}" for place, name in enumerate(dict.fromkeys([*arguments, *assigned]))}
    for node in nodes:
        if isinstance(node, ast.Name):
            node.id = number.get(node.id, node.id)
        elif isinstance(node, ast.Attribute) and node.attr == "variance_epsilon":
            node.attr = "eps"
    others = " and others" if given.kwonlyargs or given.vararg or given.kwarg else ""
    return "\n".join([f"{method.name} of {len(arguments)}{others}", *(ast.unparse(statement) for statement in body)])
