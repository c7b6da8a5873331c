"""Give the package a description whose links hold on PyPI; pyproject.toml has everything else."""

import re
import tomllib
from pathlib import Path

from setuptools import setup

HERE = Path(__file__).parent


def make_description() -> str:
    """Return the README with links and pictures that lead to this version in the repository."""
    project = tomllib.loads((HERE / "pyproject.toml").read_text())["project"]
    repository = project["urls"]["Repository"]
    tag = f"v{project['version']}"
    page = (HERE / "README.md").read_text()
    files = repository.replace("https://github.com/", "https://raw.githubusercontent.com/")
    page = re.sub(r"(!\[[^]]*\]\()(?!https?:)", rf"\g<1>{files}/{tag}/", page)
    return re.sub(r"(?<!!)(\[[^]]*\]\()(?!https?:|#)", rf"\g<1>{repository}/blob/{tag}/", page)


setup(long_description=make_description(), long_description_content_type="text/markdown")
