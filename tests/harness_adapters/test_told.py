"""What a harness is told of its model."""

from budwood.harness_adapters import Told, told_of


def test_a_served_name_is_told_without_its_path():
    assert told_of("/models/tiny one/", None).model == "tiny-one"
    assert told_of("Qwen/Qwen3-8B", None).model == "Qwen3-8B"
    assert told_of("///", None).model == "model"
    assert told_of("Qwen/Qwen3-8B", None, model="gpt-9").model == "gpt-9"


def test_an_answer_takes_a_quarter_of_a_small_window_at_most():
    assert told_of("m", 4096) == Told("m", context_window=4096, max_output=1024)
    assert told_of("m", None) == Told("m", context_window=131_072, max_output=16_384)
