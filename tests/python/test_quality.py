"""64 selected tokens of 7,500: close to dense with parts and completion, several times farther without."""

import pytest

import kl


@pytest.mark.parametrize("name", ["prose", "code"])
def test_parts_and_completion_stay_close_to_dense(request, dense, selected, plain, name):
    text = request.getfixturevalue(name)
    arguments = (kl.forced_steps, text.cache, text.next(64), text.start)
    expected = dense.run(*arguments)
    default = kl.divergence(expected, selected.run(*arguments)).mean()
    whole_pages = kl.divergence(expected, plain.run(*arguments)).mean()
    print(f"{name}: mean KL {default:.4f} with parts and completion, {whole_pages:.4f} without")
    assert default < 0.03
    assert whole_pages > 2.5 * default
