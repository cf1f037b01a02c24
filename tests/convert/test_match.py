"""Keys: prefixes, renames and wrappers as whole path segments, collisions, hints."""

import pytest

from jaxattn import ConversionError
from jaxattn.convert.match import advice, match_keys, packing_hint

WANTED = ["encoder.q.weight", "encoder.q.bias", "submodule.x"]


@pytest.mark.parametrize(
    "wrap",
    [
        lambda key: "module." + key,
        lambda key: "_orig_mod." + key,
        lambda key: "_orig_mod.module." + key,
        lambda key: key.replace("encoder.", "encoder._fsdp_wrapped_module."),
        lambda key: key.replace("q.", "q._checkpoint_wrapped_module."),
        lambda key: "_fsdp_wrapped_module.module." + key.replace("encoder.", "encoder._orig_mod."),
    ],
)
def test_wrapper_segments_are_removed_where_that_makes_a_key_match(wrap):
    keys = match_keys([wrap(key) for key in WANTED], WANTED)
    assert keys.source_of == {key: wrap(key) for key in WANTED} and not keys.unexpected
    assert keys.unwrapped == {wrap(key): key for key in WANTED if wrap(key) != key}


def test_a_model_that_really_has_a_child_called_module_is_left_alone():
    wanted = ["module.weight", "module.module.bias"]
    assert match_keys(wanted, wanted).unwrapped == {}
    wrapped = match_keys(["module." + key for key in wanted], wanted)
    assert wrapped.source_of == {key: "module." + key for key in wanted}


def test_never_a_part_of_a_segment():
    keys = match_keys(["submodule.x", "my_module.y"], ["submodule.x", "my_y"])
    assert keys.source_of == {"submodule.x": "submodule.x"} and keys.unexpected == ["my_module.y"]


def test_a_wrapper_that_does_not_help_stays():
    assert match_keys(["module.unknown"], WANTED).unexpected == ["module.unknown"]


def test_collisions_are_errors():
    with pytest.raises(ConversionError, match="`submodule.x` and `module.submodule.x` both come to `submodule.x`"):
        match_keys(["submodule.x", "module.submodule.x"], WANTED)
    with pytest.raises(ConversionError, match="both come to `a.x`"):
        match_keys(["a.x", "b.x"], ["a.x"], rename={"b": "a"})


@pytest.mark.parametrize("prefix", ["model.bert", "model.bert."])
def test_a_prefix_takes_the_sub_tree_and_reports_the_rest(prefix):
    keys = match_keys(
        ["model.bert.w", "model.head.w", "module.model.bert.b", "model.bert.extra"], ["w", "b"], prefix=prefix
    )
    assert keys.source_of == {"w": "model.bert.w", "b": "module.model.bert.b"}
    assert keys.outside_prefix == ["model.head.w"] and keys.unexpected == ["model.bert.extra"]


def test_renames_are_whole_leading_segments_and_reported():
    rename = {"old": "new", "gone.": ""}
    keys = match_keys(["old.w", "older.w", "gone.b"], ["new.w", "older.w", "b"], rename=rename)
    assert keys.source_of == {"new.w": "old.w", "older.w": "older.w", "b": "gone.b"}
    assert keys.renamed == {"old.w": "new.w", "gone.b": "b"}


@pytest.mark.parametrize(
    ("missing", "unexpected", "sentence"),
    [
        (["w", "b"], ["encoder.w", "encoder.b", "head.x"], "pass prefix='encoder'"),
        (["bert.w", "bert.b"], ["w", "b"], "there without `bert.`"),
        (["w"], ["a.w", "b.w"], "prefix='a' or prefix='b'"),
    ],
)
def test_advice(missing, unexpected, sentence):
    assert any(sentence in hint for hint in advice(missing, unexpected))


def test_no_advice_without_a_pattern():
    assert advice(["w"], []) == [] and advice([], ["x"]) == [] and advice(["w"], ["x"]) == []


@pytest.mark.parametrize(
    ("missing", "unexpected", "sentence"),
    [
        (["self_attn.in_proj_weight"], ["self_attn.q_proj.weight", "self_attn.k_proj.weight"], "wants packed q/k/v"),
        (["Wq.weight", "Wk.weight"], ["in_proj_weight"], "has packed q/k/v"),
    ],
)
def test_packing(missing, unexpected, sentence):
    assert sentence in packing_hint(missing, unexpected)[0]
