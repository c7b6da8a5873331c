from orchestrator.tables.config_differences import find_config_differences


def test_configs_differ_by_dotted_path() -> None:
    one = {
        "name": "a",
        "optimizer": {"type": "SGD", "lr": 0.1},
        "hooks": {"ema": {"decay": 0.9}, "clip": 1},
        "tags": [1, 2],
    }
    two = {
        "name": "b",
        "optimizer": {"type": "SGD", "lr": 0.2},
        "hooks": {"ema": None, "clip": 1.0},
        "tags": [1, 3],
    }
    assert find_config_differences([one, two]) == {
        "optimizer.lr": [0.1, 0.2],
        "hooks.ema.decay": [0.9, None],
        "tags": [[1, 2], [1, 3]],
    }
    assert find_config_differences([one, one]) == {}


def test_large_integers_differ_in_their_last_digit() -> None:
    one, two = {"task_args": {"id": 2**53}}, {"task_args": {"id": 2**53 + 1}}
    assert find_config_differences([one, two]) == {"task_args.id": [2**53, 2**53 + 1]}
