"""SwAV: online clustering."""

from dataclasses import dataclass

from hooks.self_supervised.shared.assigned_views import check_assigned_views
from hooks.self_supervised.shared.swapped_prediction import SwappedPrediction, split_output
from hooks.state import State


@dataclass
class SwAV(SwappedPrediction):
    """Give SwAV's loss its codes, and keep the prototypes at length 1.

        swav: {queue_length: 3840, queue_begin: 15 epochs}

    The task's forward pass returns `(embeddings, scores)`, each a list with a tensor per view:
    unit-length embeddings (B, D) and similarities to the prototypes (B, K). The hook replaces it by
    `SwappedViews`: all scores, and codes by Sinkhorn-Knopp for the assigned views, over the samples
    of all ranks and the queue. In val and test, codes come from the rank's own batch, without the
    queue. A restart with the same number of ranks keeps the queue. Source: "Unsupervised Learning
    of Visual Features by Contrasting Cluster Assignments" (Caron et al., 2020), VISSL
    SwAVUpdateQueueScoresHook and NormalizePrototypesHook.
    """

    def on_forward(self, state: State) -> None:
        count = len(state.batch[0])
        check_assigned_views(self.assigned_views, count)
        embeddings, scores = split_output(state.output, count)
        assigned = [scores[view] for view in self.assigned_views]
        own_embeddings = [embeddings[view] for view in self.assigned_views]
        state.output = self.swap(scores, assigned, own_embeddings, self._layer, state)

    def on_update(self, state: State) -> None:
        self.normalize(self._layer)
