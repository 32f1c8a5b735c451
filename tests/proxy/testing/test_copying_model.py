"""The model that copies names before it has learnt anything."""

import pytest

from budwood.proxy.testing.copying_model import CopyingModel, build_model, build_tokenizer

SYSTEM = {"role": "system", "content": "You work alone, in a sandbox.\nNobody answers questions."}


def told(name):
    return {
        "messages": [
            SYSTEM,
            {"role": "user", "content": f"Sort the file `{name}` please."},
            {"role": "assistant", "content": f"I sort {name} now."},
        ]
    }


@pytest.fixture(scope="module")
def tokenizer():
    names = ("apples", "pears", "plums", "figs", "dates")
    return build_tokenizer({"one": [told(name) for name in names]}, CopyingModel())


def pieces(tokenizer, text):
    return [tokenizer.decode([number]) for number in tokenizer.encode(text)]


def test_common_words_are_tokens_and_names_are_spelled(tokenizer):
    assert pieces(tokenizer, "Sort the file") == ["Sort", " the", " file"]
    assert pieces(tokenizer, "apples") == list("apples")
    assert pieces(tokenizer, "quinces") == list("quinces")


def test_what_all_prompts_share_is_one_token(tokenizer):
    block = f"system\n{SYSTEM['content']}"
    found = pieces(tokenizer, f"<|im_start|>{block}<|im_end|>")
    assert found == ["<|im_start|>", block, "<|im_end|>"]


def test_an_answer_that_is_always_the_same_is_not_one_token_with_what_asks_for_it():
    done = {"role": "assistant", "content": "It is done."}
    names = ("apples", "pears", "plums", "figs", "dates")
    same = [{"messages": [*told(name)["messages"][:2], done]} for name in names]
    tokenizer = build_tokenizer({"one": same}, CopyingModel())
    found = pieces(tokenizer, "<|im_start|>assistant\nIt is done.<|im_end|>")
    assert found[:3] == ["<|im_start|>", "assistant", "\n"]


def test_any_text_comes_back_as_it_was(tokenizer):
    text = f"<|im_start|>user\n{SYSTEM['content']}\nOlá ✓ `a-b.c`  {{\t}}<|im_end|>\n"
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_it_goes_on_with_a_name_that_it_has_never_seen(tokenizer):
    import torch

    model = build_model(tokenizer, CopyingModel())
    generator = torch.Generator().manual_seed(1)
    seen = torch.randint(0, 200, (16, 40), generator=generator)
    again = torch.cat([seen, seen[:, 7:30]], dim=1)
    with torch.no_grad():
        said = model(input_ids=again).logits[:, :-1].argmax(-1)
    # From the third token on, two have been seen before: what follows is known.
    right = (said[:, 42:] == again[:, 43:]).float().mean()
    assert right > 0.8
