"""An error's own words."""

from weakref import ref

import torch

from hooks import State
from hooks.errors import add_article, describe_error, format_error


class Speechless(Exception):
    def __str__(self) -> str:
        raise KeyError("words")


def test_error_text_is_plain_and_short() -> None:
    assert (
        describe_error(ValueError("\x1b[36mray::MapBatches(prepared)\x1b[39m (pid=7)"))
        == "ValueError: ray::MapBatches(prepared) (pid=7)"
    )
    assert format_error(ValueError("x" * 2_001)) == f"{'x' * 2_000}... (2,001 characters)"
    assert format_error(Speechless()) == "which has no message: its __str__ raises KeyError"
    assert describe_error(KeyboardInterrupt()) == "KeyboardInterrupt"


def test_article_follows_the_sound_of_a_noun() -> None:
    names = ["int", "OrderedDict", "ndarray", "Adam", "str", "UNet", "uint8", "Linear"]
    articles = [add_article(name).removesuffix(f" {name}") for name in names]
    assert articles == ["an", "an", "an", "an", "a", "a", "a", "a"]
    spelled = ["SGD", "MSELoss", "LSTM", "RMSprop", "NAdam", "GELU", "BCELoss"]
    articles = [add_article(name).removesuffix(f" {name}") for name in spelled]
    assert articles == ["an", "an", "an", "an", "an", "a", "a"]


def test_recorded_tensor_is_a_copy_without_graph() -> None:
    state = State()
    weights = torch.ones(3, requires_grad=True)
    activations = weights * 2
    loss = activations.sum()
    kept = ref(activations)
    state.record(loss=loss, first=activations.detach()[0], count=3)
    del activations, loss
    assert kept() is None
    view = torch.zeros(1000)
    state.record(one=view[1])
    view.fill_(5)
    recorded = {name: float(value) for name, value in state.row.items()}
    assert recorded == {"loss": 6.0, "first": 2.0, "count": 3.0, "one": 0.0}
    assert state.row["one"].untyped_storage().nbytes() == 4
