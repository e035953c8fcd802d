"""What each layer of a model is: its window, its experts, its numbers."""

import pytest

from calibration.architecture import Architecture, Capping, Experts, UnsupportedArchitecture, parse_config
from tests.calibration.configs import CONFIGS


def changed(family, **changes):
    return parse_config(CONFIGS[family] | changes)


def windows(a):
    return [a.window_at(index) for index in range(a.layers)]


def test_windows_lie_where_the_family_has_them():
    assert windows(changed("llama")) == [None] * 6
    assert windows(changed("mistral")) == [256] * 6
    assert windows(changed("qwen2")) == [None] * 4 + [64] * 2
    assert windows(changed("gemma2")) == [256, None] * 3


def test_layer_types_move_the_windows_and_are_kept_in_the_file():
    kinds = ["full_attention", "sliding_attention"] * 3
    a = changed("gemma2", layer_types=kinds)
    assert windows(a) == [None, 256] * 3
    assert windows(Architecture.from_dict(a.to_dict())) == [None, 256] * 3
    usual = changed("gemma2", layer_types=["sliding_attention", "full_attention"] * 3)
    assert usual == changed("gemma2")
    assert "windowed_at" not in usual.to_dict()


def test_gemma_s_numbers_are_the_file_s_or_its_class_s():
    assert changed("gemma2").capping == Capping(256.0, 50.0, 30.0)
    a = changed("gemma2", query_pre_attn_scalar=224, attn_logit_softcapping=20.0, final_logit_softcapping=10)
    assert Architecture.from_dict(a.to_dict()).capping == Capping(224.0, 20.0, 10.0)
    for key in ("query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping"):
        with pytest.raises(UnsupportedArchitecture) as refusal:
            changed("gemma2", **{key: -1})
        assert refusal.value.field == key
    with pytest.raises(UnsupportedArchitecture):
        changed("gemma2", attn_logit_softcapping=None)


def test_experts_lie_where_the_file_puts_them():
    def where(a):
        return [a.experts_at(index) is not None for index in range(a.layers)]

    assert where(changed("mixtral")) == [True] * 6
    assert where(changed("qwen3_moe")) == [False, True] * 3  # every second layer, not the first
    assert where(changed("qwen3_moe", decoder_sparse_step=1, mlp_only_layers=[5])) == [True] * 5 + [False]
    assert where(changed("deepseek_v3")) == [False] * 2 + [True] * 4
    assert where(changed("llama")) == [False] * 6
    moved = changed("qwen3_moe", decoder_sparse_step=1, mlp_only_layers=[5])
    assert where(Architecture.from_dict(moved.to_dict())) == where(moved)


def test_how_experts_are_picked_is_the_file_s():
    assert not changed("qwen3_moe").experts.normalised
    assert changed("qwen3_moe", norm_topk_prob=True).experts.normalised
    deepseek = changed("deepseek_v3", n_routed_experts=12, n_group=4, topk_group=2, routed_scaling_factor=2.5)
    assert deepseek.experts == Experts(12, 3, 40, 4, 40, (), True, True, 4, 2, 2.5)
    assert not changed("deepseek_v3", scoring_func="softmax").experts.sigmoid
    for changes, field in (
        ({"n_group": 3}, "n_group"),
        ({"n_group": 5, "topk_group": 1}, "topk_group"),
        ({"scoring_func": "tanh"}, "scoring_func"),
        ({"routed_scaling_factor": 0}, "routed_scaling_factor"),
    ):
        with pytest.raises(UnsupportedArchitecture) as refusal:
            changed("deepseek_v3", **changes)
        assert refusal.value.field == field


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("gemma2", {"windowed_at": [0, 2]}),
        ("gemma2", {"windowed_at": [0, 2, 6]}),
        ("llama", {"windowed_at": [0]}),
        ("gemma2", {"capping": 5}),
        ("qwen3_moe", {"experts": changed("qwen3_moe").to_dict()["experts"] | {"dense_at": [0]}}),
    ],
)
def test_a_stored_model_whose_layers_contradict_each_other_is_refused(family, changes):
    with pytest.raises(UnsupportedArchitecture):
        Architecture.from_dict(changed(family).to_dict() | changes)
