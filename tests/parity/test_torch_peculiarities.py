"""What is particular about a torch module and is no difference."""

from torch import nn

import jaxattn
from jaxattn.parity import compare


def test_an_argument_that_torch_reads_but_does_not_use_is_noted(randomised, draw) -> None:
    """A stack that detects a float causal mask computes without it: it has no gradient there, ours has one."""
    layer = nn.TransformerEncoderLayer(22, 2, 13, batch_first=True)
    module = randomised(nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)).eval()
    mask = nn.Transformer.generate_square_subsequent_mask(5).numpy()
    report = compare(module, jaxattn.from_torch(module), draw(3, 5, 22), mask=mask)
    report.assert_ok()
    assert any(note.startswith("`mask` has no gradient in torch") for note in report.notes)
    assert "gradient of mask" not in [row.what for row in report.rows]


def test_wrappers_come_off_and_computed_weights_are_compared_as_they_are(randomised, draw) -> None:
    inner = randomised(nn.Sequential(nn.Linear(7, 5), nn.ReLU()))
    normed = nn.utils.parametrizations.weight_norm(randomised(nn.Linear(7, 5)))
    compare(nn.DataParallel(inner), jaxattn.from_torch(nn.DataParallel(inner)), draw(3, 7)).assert_ok()
    compare(normed, jaxattn.from_torch(normed, merge=True), draw(3, 7)).assert_ok()
