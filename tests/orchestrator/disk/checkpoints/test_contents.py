import pytest
import torch

from orchestrator.disk.checkpoints.contents import load_buffers, load_parts, load_weights
from orchestrator.disk.checkpoints.store import CheckpointStore
from orchestrator.errors import CheckpointError
from tests.orchestrator.disk.checkpoints.saved import save, weights


def test_damage_of_a_newer_checkpoint_is_logged_once(
    store: CheckpointStore, caplog: pytest.LogCaptureFixture
) -> None:
    save(store, "a", 1, value=0.5)
    save(store, "b", 2)
    store.storage.write("b/manifest.json", "{")
    loaded = load_weights(store, "last")
    assert torch.equal(loaded["weight"], weights(0.5)["weight"])
    assert len([text for text in caplog.messages if text.startswith("skipped")]) == 1


def test_evaluated_weights_are_those_of_the_checkpoint_that_was_resolved(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a run trains, `last` may name another checkpoint a moment later."""
    save(store, "a", 1, value=0.5)
    resolved = iter(["a"])
    monkeypatch.setattr(store, "resolve", lambda label: next(resolved))
    assert torch.equal(load_weights(store, "last")["weight"], weights(0.5)["weight"])


def test_parts_have_the_names_that_are_asked_for(store: CheckpointStore) -> None:
    save(store, "a", 1)
    parts = load_parts(store, "a", {"average": "hooks/ema", "hooks": "hooks"})
    assert parts == {"average": {"updates": 1}, "hooks": {"ema": {"updates": 1}}}
    with pytest.raises(CheckpointError, match="checkpoint 'a' has no net; it has hooks, model"):
        load_parts(store, "a", {"net": "net"})


def test_custom_loop_has_no_buffers(store: CheckpointStore) -> None:
    save(store, "a", 1)
    assert load_buffers(store, "a") == ({}, [])
