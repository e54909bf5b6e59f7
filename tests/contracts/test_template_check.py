"""`script.template_check` finds what the content security policy would refuse."""

import pytest

from script.template_check import problems_of


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("<script>alert(1)</script>", "inline <script>"),
        ("<p>\n<style>p{}</style>", "inline <style>"),
        ('<p style="color:red">', "style attribute"),
        ('<button onclick="go()">', "onclick"),
        ('<a hx-on:click="go()">', "hx-on:click"),
        ('<script src="https://cdn.example/x.js"></script>', "another host"),
        ('<img src="//cdn.example/x.png">', "another host"),
        ('<img src="HTTP://cdn.example/x.png"/>', "another host"),
    ],
)
def test_refused(text: str, word: str) -> None:
    assert [problem for _, problem in problems_of(text) if word in problem]


@pytest.mark.parametrize(
    "text",
    [
        '<script src="{% static "js/x.js" %}" defer></script>',
        '<script type="application/json" id="x">{}</script>',
        '<svg xmlns="http://www.w3.org/2000/svg"></svg>',
        '<a href="{{ url }}" class="{% if a %}on{% endif %}">x</a>',
        '<a href="/sites">x</a>',
    ],
)
def test_taken(text: str) -> None:
    assert problems_of(text) == []


def test_the_line_is_that_of_the_template() -> None:
    assert problems_of("{% comment\n\n%}\n<p style='x'>")[0][0] == 4
