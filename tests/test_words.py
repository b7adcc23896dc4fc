from zephon_core.words import in_words


def test_an_error_is_told_on_one_line_and_not_at_length():
    assert in_words(ValueError("a\n  b")) == "ValueError: a b"
    assert in_words(KeyError()) == "KeyError"
    assert len(in_words(RuntimeError("x" * 1000))) == len("RuntimeError: ") + 200
