"""How an interpreter of ours is started in the user's working folder."""

from __future__ import annotations

_CODE = (
    "import os, sys; "
    'sys.path[:] = [p for p in sys.path if p] + [os.getcwd()] * ("" in sys.path); '
    "from {module} import main; main()"
)


def python_code(module: str) -> str:
    """Code for ``python -c`` that runs ``main()`` of a module.

    With ``python -m`` the working folder would be looked in first, and a user's ``json.py`` there
    would take the place of Python's. It is looked in last, for those who work in a checkout of
    slurmmesh; the user's own program finds the modules beside it all the same.
    """
    return _CODE.format(module=module)
