import os
import sysconfig

import pytest
import torch

from orchestrator.user_code.installed import is_installed


@pytest.mark.parametrize(
    "file",
    [
        torch.__file__,
        os.__file__,
        f"{sysconfig.get_path('purelib')}/package/module.py",
        "/home/ada/.local/lib/python3.11/site-packages/torch/nn/modules/linear.py",
        "/usr/lib/python3/dist-packages/numpy/__init__.py",
        "/opt/base/lib/python3.11/site-packages/torch/__init__.py",
    ],
)
def test_library_is_installed_wherever_it_lies(file: str) -> None:
    assert is_installed(file)


@pytest.mark.parametrize(
    "file",
    [__file__, "/home/ada/study/train.py", "/home/ada/site-packages-study/train.py", "train.py"],
)
def test_module_outside_the_folders_of_packages_is_not_installed(file: str) -> None:
    assert not is_installed(file)
