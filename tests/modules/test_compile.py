"""torch.compile of a swapped model: the dense part is compiled, the lookup runs as it is."""

import pytest
import torch
from torch import nn

from grace_torchrec.modules.swap import accelerate_

BAGS = [[1, 2, 7], [], [3, 4, 5, 9]]


class Scores(nn.Module):
    """One collection and a dense layer over it."""

    def __init__(self, collection) -> None:
        super().__init__()
        self.collection = collection
        self.dense = nn.Linear(collection.embedding_bag_configs()[0].embedding_dim, 1)

    def forward(self, bags):
        return self.dense(self.collection(bags).values())


@pytest.fixture
def batch(batch_of):
    return batch_of({"item": BAGS})


@pytest.fixture
def compiled(table_of, collection_of, model_plan, batch):
    """A swapped model, compiled without a C++ compiler, and what it answered before both."""
    model = Scores(collection_of([table_of("t_item", features=("item",))])).eval()
    with torch.no_grad():
        wanted = model(batch)
    accelerate_(model, model_plan(model))
    yield torch.compile(model, backend="aot_eager"), wanted
    torch._dynamo.reset()


@pytest.mark.soak
def test_without_gradients_it_answers_as_before(compiled, batch):
    model, wanted = compiled
    with torch.no_grad():
        torch.testing.assert_close(model(batch), wanted)


@pytest.mark.filterwarnings("ignore:Error detected in Generated")  # tells of the forward call
def test_with_gradients_the_compiler_asks_for_a_backward_and_is_refused(compiled, batch):
    """Called plainly, a swapped model refuses at backward(); a compiler writes that one ahead."""
    model, _ = compiled
    with pytest.raises(Exception, match="backward through a GraceEmbeddingBagCollection: it is"):
        model(batch)
