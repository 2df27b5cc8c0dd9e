"""The game played in a browser, without a book around it."""

import pytest

from richbook.show import richer_game
from tests.browser.harness import STICKS_OUT, show_view

pytestmark = pytest.mark.browser

PAIRS = 3


@pytest.fixture(scope="module")
def game():
    return richer_game(seed=2, pairs=PAIRS)


@pytest.fixture(params=[860, 360])
def drawn(request, page, game):
    show_view(page, game, request.param)
    return page


def words(page):
    return page.locator(".rb-game-words").inner_text().replace("\n", "")


def test_the_answer_is_not_given_away_before_it_is_asked(drawn, game):
    text = drawn.locator("#view").inner_text()
    for network, name in zip(game.pairs[0], "AB", strict=True):
        assert f"{name} test accuracy {network.test_accuracy:.3f}" in text
        assert f"{network.d_lr:.3f}" not in text
    assert "weight decay" not in text and "Which one is richer?" in text
    assert text.startswith("Pair 1 of 3\n")
    assert not drawn.locator(".rb-game-next").is_visible()


@pytest.mark.parametrize("right", [True, False])
def test_the_answer_tells_both_d_lr_and_how_they_were_trained(drawn, game, right):
    solution, pair = game.solution[0], game.pairs[0]
    drawn.locator(".rb-game-choice").nth(solution if right else 1 - solution).click()
    said = words(drawn)
    assert said.startswith(f"{'Right' if right else 'No'}: {'AB'[solution]} is richer.")
    rich, lazy = pair[solution].d_lr, pair[1 - solution].d_lr
    assert f"DLR is {rich:.3f} in {'AB'[solution]} and {lazy:.3f} in {'BA'[solution]}, " in said
    assert f"{lazy / rich:.1f} times as much" in said
    for number, told in enumerate(game.rounds[0]):
        box = drawn.locator(".rb-game-network").nth(number)
        cells = box.locator("dt").all_inner_texts(), box.locator("dd").all_inner_texts()
        assert [list(row) for row in zip(*cells, strict=True)] == told["settings"]
        assert f"{told['d_lr']:.3f}" in box.locator("svg").last.text_content()
    assert drawn.locator(".rb-richer").get_attribute("aria-label") == f"Network {'AB'[solution]}"
    score = drawn.locator(".rb-game-sum").inner_text()
    assert score == f"Pair 1 of 3 · {int(right)} of 1 right"


def test_the_whole_game_by_keyboard(drawn, game):
    """Tab to the first button; then each press puts the focus where the next one is due."""
    drawn.keyboard.press("Tab")
    for number, solution in enumerate(game.solution):
        assert drawn.evaluate("document.activeElement.textContent") == "A is richer"
        if solution == 1:
            drawn.keyboard.press("Tab")
        drawn.keyboard.press("Enter" if number % 2 else " ")
        assert words(drawn).startswith(f"Right: {'AB'[solution]}")
        expected = "Next pair" if number < PAIRS - 1 else "Play again"
        assert drawn.evaluate("document.activeElement.textContent") == expected
        if number < PAIRS - 1:
            drawn.keyboard.press("Enter")
    assert drawn.locator(".rb-game-sum").inner_text() == (
        "Pair 3 of 3 · 3 of 3 right; guessing gets 1.5 on average"
    )
    assert drawn.evaluate("model.get('answers')") == game.solution
    assert drawn.evaluate("window.saved")
    drawn.keyboard.press("Enter")
    assert drawn.evaluate("[model.get('round'), model.get('answers')]") == [0, []]
    assert "Which one is richer?" in words(drawn)


def test_each_pair_is_drawn_anew(drawn):
    seen = set()
    for _ in range(PAIRS):
        seen.add(drawn.locator(".rb-game-pair svg").nth(1).inner_html())
        drawn.locator(".rb-game-choice").first.click()
        drawn.locator(".rb-game-next").click()
    assert len(seen) == PAIRS


def test_nothing_sticks_out_and_the_height_does_not_jump(drawn):
    heights = set()
    for _ in range(PAIRS):
        for button in (".rb-game-choice", ".rb-game-next"):
            assert drawn.evaluate(STICKS_OUT) == []
            assert "NaN" not in drawn.locator("#view").inner_html()
            heights.add(round(drawn.locator("#view").bounding_box()["height"]))
            drawn.locator(button).first.click()
    assert max(heights) - min(heights) <= 2


def test_pictures_are_named(drawn):
    names = [svg.get_attribute("aria-label") for svg in drawn.locator("#view svg").all()]
    assert names == [
        f"{name}: {what}"
        for name in "AB"
        for what in (
            "train and test accuracy during training",
            "cumulative utilisation at the end of training",
        )
    ]


def test_where_the_curves_mislead_it_is_said(page, game):
    misled = richer_game(seed=2, pairs=PAIRS)
    rounds = [[dict(told) for told in pair] for pair in misled.rounds]
    for told in rounds[0]:
        told["needed"] = 9
    misled.rounds = rounds
    show_view(page, misled, 860)
    page.locator(".rb-game-choice").first.click()
    assert "That does not tell them apart" in words(page)
