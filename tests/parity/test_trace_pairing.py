"""Which submodules `trace` puts side by side."""

import numpy as np

import jaxattn
from jaxattn.parity import trace

from ..cases import small_bert
from ..inputs import generator, randomise


def test_parts_with_the_same_weights_under_other_names_are_a_pair():
    """transformers' encoder.layer.0 is encoder.layers.0 here, its intermediate.dense linear1; by name neither pairs."""
    module = randomise(small_bert(), "pairing").eval()
    ids = generator("pairing").integers(0, 31, (3, 5))
    report = trace(module, jaxattn.from_torch(module), ids, attention_mask=np.ones((3, 5), np.int64))
    report.assert_ok()
    pairs = {layer.torch_path: layer.flax_path for layer in report.layers}
    assert pairs["encoder.layer.0"] == "encoder.layers.0"
    assert pairs["encoder.layer.0.intermediate.dense"] == "encoder.layers.0.linear1"
    assert not {"torch: encoder.layer.0", "torch: encoder.layer.0.intermediate.dense"} & set(report.unpaired)
