"""Known pitfalls of moving attention between PyTorch and JAX, by id: where each is tested, or why it doesn't apply.

A masks · B causality, caches, appended columns · C weights, norms, dropout · D the oracle itself. Each stands for many
reports; one of them is named.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Pitfall:
    """What goes wrong, a public report, and the tests of it as "file::function" below tests/; or why there are none."""

    what: str
    report: str
    tests: tuple[str, ...] = ()
    reason: str | None = None


MASKS, MODULES = "pitfalls/test_masks.py::", "pitfalls/test_modules.py::"
OP, MULTIHEAD = "core/test_dot_product.py::", "variants/test_multihead_torch.py::"
CONTRACT, DEPARTURES = "variants/test_multihead_torch_contract.py::", "variants/test_multihead_torch_departures.py::"
ENCODER, DECODER, LAYER = (f"transformer/test_{name}.py::" for name in ("encoder", "decoder", "layer"))
DRAWS = "torch_nn/test_transformer_draws.py::test_as_torch"
MULTIHEAD_DRAWS = "torch_nn/test_multihead_draws.py::test_as_torch"

PITFALLS = {
    "A01": Pitfall(
        "a boolean mask is inverted",
        "pytorch#170415",
        (
            MASKS + "test_polarity_goes_by_the_arguments_name",
            "core/test_mask_arrays.py::test_torch_polarity_is_negated_and_floats_are_added",
        ),
    ),
    "A02": Pitfall(
        "a fully masked row has three answers",
        "pytorch#41508",
        (MULTIHEAD + "test_an_empty_row_as_torch_gives_it", OP + "test_empty_rows"),
    ),
    "A03": Pitfall(
        "NaN gradients from one masked row",
        "pytorch#41508",
        (MASKS + "test_an_empty_row_does_not_poison_the_gradients",),
    ),
    "A04": Pitfall(
        "a masked softmax is finite, its gradient isn't",
        "jax#17070",
        ("core/test_softmax.py::test_renormalised_entropy_has_a_finite_gradient",),
    ),
    "A06": Pitfall(
        "a fast path makes a float bias boolean",
        "pytorch#107084",
        (DEPARTURES + "test_the_fast_path_reads_a_float_mask_as_boolean",),
    ),
    "A07": Pitfall(
        "a float mask of 0 and 1 is added",
        "pytorch#21518",
        (MASKS + "test_a_floating_mask_of_ones_and_zeros_is_added",),
    ),
    "A09": Pitfall("an integer padding mask", "pytorch#86120", (CONTRACT + "test_masks_that_both_refuse",)),
    "A10": Pitfall(
        "a mask by head is tiled, not repeated",
        "pytorch#64706",
        ("core/test_mask_arrays.py::test_three_axes_are_batch_times_heads", MULTIHEAD_DRAWS),
    ),
    "A11": Pitfall(
        "padding beside a mask by head masks queries",
        "pytorch#63271",
        (MASKS + "test_padding_joins_a_mask_by_head_on_the_keys_alone",),
    ),
    "A13": Pitfall(
        "a fill constant overflows float16", "flax#982", (OP + "test_dtype_is_that_of_q_and_masks_do_not_overflow",)
    ),
    "A14": Pitfall(
        "left padding gives NaN", "transformers#21150", (MASKS + "test_left_padding_in_a_batch_changes_nothing",)
    ),
    "A15": Pitfall(
        "padding on the query axis",
        "hyunwoongko/transformer#40",
        (MASKS + "test_padding_joins_a_mask_by_head_on_the_keys_alone",),
    ),
    "A16": Pitfall("NaN of a masked key leaks", "pytorch#101967", (OP + "test_nan_in_a_masked_key_is_not_seen",)),
    "A18": Pitfall("a window is ignored without a mask", "jax#32300", (MASKS + "test_a_window_needs_no_other_mask",)),
    "A19": Pitfall(
        "lengths of keys alone are ignored", "jax#23349", (MASKS + "test_lengths_of_keys_need_no_lengths_of_queries",)
    ),
    "A21": Pitfall(
        "a mask of another dtype than the query",
        "pytorch#191612",
        (MASKS + "test_a_float32_mask_beside_narrow_queries",),
    ),
    "A23": Pitfall(
        "a window gives NaN in one path", "pytorch#127055", (MASKS + "test_a_band_gives_no_nan_without_weights",)
    ),
    "A24": Pitfall(
        "masks of another rank while decoding",
        "flax#4505",
        reason="masks.causal() takes no array whose rank could be wrong",
    ),
    "A25": Pitfall("mask helpers give floats", "flax/nnx/nn/attention.py", (MASKS + "test_every_mask_is_boolean",)),
    "B01": Pitfall("causal with T ≠ S", "pytorch#103082", (MASKS + "test_both_causal_alignments",)),
    "B02": Pitfall(
        "is_causal is ignored when weights are asked for",
        "pytorch#99282",
        (MASKS + "test_weights_do_not_switch_the_causal_mask_off",),
    ),
    "B04": Pitfall(
        "decoding with a causal mask sees key 0 only", "flax#5591", ("test_adapters_flax.py::test_nnx_decoding",)
    ),
    "B05": Pitfall(
        "an option documented but not released",
        "flax#5486",
        reason="is_causal is our own; only adapters call Flax's attention, and are tested on what is installed",
    ),
    "B06": Pitfall(
        "appended columns change S", "pytorch#27461", (MASKS + "test_appended_columns_count_and_leak_nothing",)
    ),
    "C01": Pitfall(
        "a square kernel is transposed",
        "flax#866",
        ("convert/test_torch_layers.py::test_a_square_kernel_is_transposed",),
    ),
    "C02": Pitfall(
        "packed rows are split wrongly",
        "pytorch#18334",
        (MULTIHEAD + "test_packed_rows_are_q_k_v_and_heads_are_slices_of_each",),
    ),
    "C03": Pitfall(
        "kdim and vdim have other keys",
        "pytorch#21288",
        (MULTIHEAD + "test_the_same_names_and_shapes_in_the_state_dict", MULTIHEAD_DRAWS),
    ),
    "C27": Pitfall(
        "the residual of pre-norm, final norms",
        "pytorch#61165",
        (MODULES + "test_where_final_norms_are", MODULES + "test_the_residual_of_pre_norm_is_not_normalised"),
    ),
    "C28": Pitfall(
        "layers start equal, Xavier of packed weights",
        "pytorch#72253",
        (
            MODULES + "test_initial_spread_of_packed_and_separate_projections",
            "transformer/test_transformer.py::test_initial_matrices_are_xavier_uniform_and_layers_differ",
        ),
    ),
    "C29": Pitfall(
        "averaged or one map a head",
        "pytorch#34537",
        (MULTIHEAD + "test_average_is_the_mean_over_heads", MULTIHEAD + "test_unbatched"),
    ),
    "C30": Pitfall(
        "returned weights include dropout",
        "pytorch#42929",
        (MULTIHEAD + "test_training_drops_weights_and_returns_them_dropped",),
    ),
    "C31": Pitfall(
        "dropout active in eval, dead in training",
        "pytorch#124464",
        (ENCODER + "test_dropout_only_in_training_and_in_every_place",),
    ),
    "C32": Pitfall(
        "one dropout mask for all heads",
        "flax#3384",
        (OP + "test_drawn_dropout_differs_between_heads_and_examples", DRAWS),
    ),
    "D01": Pitfall(
        "an encoder's output is shortened",
        "pytorch#97111",
        (DEPARTURES + "test_the_fast_path_of_a_stack_gives_padded_positions_as_zero",),
    ),
    "D02": Pitfall("padding that isn't at the end", "pytorch#90866", (MODULES + "test_padding_may_be_scattered",)),
    "D03": Pitfall(
        "train() and eval() take other code", "pytorch#86120", (MODULES + "test_every_mode_of_torch_is_met",)
    ),
    "D04": Pitfall(
        "need_weights decides the path", "pytorch#98505", (MASKS + "test_weights_do_not_switch_the_causal_mask_off",)
    ),
    "D05": Pitfall(
        "bias=False",
        "pytorch#116385",
        (
            DECODER + "test_state_dict_keys_are_torch_keys",
            "oracle/test_plain_path.py::test_bias_false_runs_without_gradients",
        ),
    ),
    "D07": Pitfall(
        "widths of heads in half precision", "pytorch#110505", (MODULES + "test_any_width_of_head_in_low_precision",)
    ),
    "D08": Pitfall(
        "batches differ from single examples by rounding",
        "pytorch#34060",
        ("laws/test_transformations.py::test_vmap_equals_loop_equals_batch",),
    ),
    "D09": Pitfall(
        "32-bit offsets of huge arrays",
        "pytorch#162588",
        reason="needs more than 2³¹ elements; no kernel of ours computes offsets",
    ),
    "D10": Pitfall(
        "maps of a layer can't be had",
        "pytorch#99304",
        (DECODER + "test_capture_gives_the_maps_of_every_layer",),
    ),
    "D11": Pitfall("documented defaults", "pytorch docs", (LAYER + "test_arguments_and_defaults_are_torchs",)),
}
