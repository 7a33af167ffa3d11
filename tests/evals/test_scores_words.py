"""F1, ROUGE-L and edit similarity on values worked by hand."""

import pytest

import task_helpers  # noqa: F401
import scores_words as words


def test_normalising_english():
    assert words.normalize("  The Eiffel-Tower, a  *tall* one! ") == "eiffeltower tall one"
    assert words.normalize("Another theme") == "another theme"


@pytest.mark.parametrize(
    ("answer", "reference", "expected"),
    [
        ("The cat sat.", "a cat sat", 1.0),
        ("the black cat", "cat", 2 * 0.5 * 1 / 1.5),  # one of two words, all of one
        ("cat cat dog", "cat", 2 * (1 / 3) / (4 / 3)),  # the second cat is one too many
        ("dog", "cat", 0.0),
        ("", "cat", 0.0),
        ("the", "a", 0.0),  # nothing is left of either
    ],
)
def test_f1_of_words(answer, reference, expected):
    assert words.qa_f1(answer, reference) == pytest.approx(expected)


def test_chinese_segments():
    assert words.segments("北京2008年，Olympic games") == ["北", "京", "2008", "年", "，", "Olympic", " ", "games"]


def test_f1_of_chinese_segments():
    assert words.qa_f1_chinese("《北京》。", "北京") == pytest.approx(2 * (2 / 3) * 1 / (5 / 3))  # 《 is not removed
    assert words.qa_f1_chinese("北京。", "北京") == 1.0
    # 2008 is one token of two against three.
    assert words.qa_f1_chinese("2008年", "二2008年") == pytest.approx(2 * 1 * (2 / 3) / (5 / 3))


def test_f1_of_characters():
    # Of 2008年 and 2009年, four characters of five are common.
    assert words.character_f1("2008 年！", "2009年") == pytest.approx(0.8)


def test_edit_similarity():
    # difflib finds the block `bcd`: 2 * 3 / 8.
    assert words.edit_similarity("abcd", "bcde") == 0.75
    # 2 * 1 / 3 in whole hundredths.
    assert words.edit_similarity("ab", "b") == 0.67
    assert words.edit_similarity("", "b") == 0.0
    assert words.edit_similarity("", "") == 1.0


def test_rouge_l_of_one_sentence():
    # `police the gunman`: 3 words of 4 and of 4.
    assert words.rouge_l("police kill the gunman", "police killed the gunman") == pytest.approx(0.75)
    # In this order only `the gunman`.
    assert words.rouge_l("the gunman kill police", "police killed the gunman") == pytest.approx(0.5)


def test_rouge_l_counts_different_words_of_a_union():
    # Lin's example: of w1 w2 w3 w4 w5, the two sentences of the answer have w1 w2 and w1 w3 w5. The union has 4 words; the
    # reference 5 different ones, the answer 1 2 6 7 8 and 3 9 5, of which 1 and 8 come twice: 8.
    answer, reference = "w1 w2 w6 w7 w8. w1 w3 w8 w9 w5", "w1 w2 w3 w4 w5"
    precision, recall = 4 / 8, 4 / 5
    assert words.rouge_l(answer, reference) == pytest.approx(2 * precision * recall / (precision + recall))


def test_rouge_l_of_repeated_words_counts_them_once():
    assert words.rouge_l("a a a a", "a b") == pytest.approx(2 * 1 * 0.5 / 1.5)


def test_rouge_l_of_nothing():
    assert words.rouge_l("", "a b") == 0.0
    assert words.rouge_l("...", "a b") == 0.0


def test_rouge_l_of_long_sentences():
    text = " ".join(str(i) for i in range(1200))
    assert words.rouge_l(text, text) == pytest.approx(1.0)


def test_rouge_l_in_chinese():
    # Characters: 3 of 4 in the answer and of 3 in the reference are in the longest common subsequence.
    assert words.rouge_l_chinese("我很爱你", "我爱你") == pytest.approx(2 * 0.75 * 1 / 1.75)


def test_rouge_l_sum():
    # Lin's example again, by lines and with counts: hits 1 2 3 5 of 5 words and of 10.
    assert words.rouge_l_sum("w1 w2 w6 w7 w8\nw1 w3 w8 w9 w5", "w1 w2 w3 w4 w5") == pytest.approx(2 * 4 / 15)


def test_rouge_l_sum_never_counts_a_word_twice():
    # Both lines of the reference find the one `cat` of the answer: it counts once. 1 hit, 1 word and 2.
    assert words.rouge_l_sum("cat", "cat\ncat") == pytest.approx(2 / 3)
    assert words.rouge_l_sum("", "cat") == 0.0


def test_rouge_l_sum_looks_at_letters_and_digits_in_lower_case():
    assert words.rouge_l_sum("The CAT's 2 ears!", "the cat s 2 ears") == 1.0
