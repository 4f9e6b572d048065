"""Chat templates of strangers: whatever they ask for, the answer is one line."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from specli.engine.rendering import Renderer, answers
from specli.engine.template import ChatTemplate, TemplateRefusal

HELLO = [{"role": "user", "content": "Hello"}]
HOSTILE = {
    "a long loop": "{% for i in range(10**9) %}x{% endfor %}",
    "loops in loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "text that doubles": (
        "{% set n = namespace(x='aaaa') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}{{ n.x }}"
    ),
    "a huge constant": "{{ 'a' * 10**10 }}",
    "a huge number": "{{ (9 ** 9999999) ** 9999 }}",
    "a wide field": "{{ 'x' | center(10**9) }}",
    "endless output": "{% for i in range(99999) %}{{ 'x' * 1000 }}{% endfor %}",
    "recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "deep nesting": "{{" + "(" * 5000 + "1" + ")" * 5000 + "}}",
    "classes": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "the system": "{{ cycler.__init__.__globals__.os.system('true') }}",
    "files": "{% include '/etc/passwd' %}",
    "changing what it was given": "{{ messages.append(1) }}",
    "no template": "{% if %}",
    "half a template": "{% for m in messages %}",
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_template_is_refused_in_one_line(kind: str) -> None:
    with pytest.raises(TemplateRefusal) as refused:
        ChatTemplate(HOSTILE[kind], "", "").render(HELLO)
    message = str(refused.value)
    assert message.startswith("chat template: ") and len(message) < 260 and "\n" not in message


def test_what_is_not_valid_is_refused_at_once() -> None:
    with pytest.raises(TemplateRefusal, match="chat template: not a valid template: "):
        ChatTemplate("{% if %}", "", "")


def test_after_a_refusal_it_goes_on() -> None:
    """A template that only some messages send astray renders the others."""
    source = "{% if messages[0].content == 'long' %}" + HOSTILE["loops in loops"] + "{% endif %}fine"
    template = ChatTemplate(source, "", "")
    assert template.render(HELLO) == "fine"
    with pytest.raises(TemplateRefusal, match="come to an end"):
        template.render([{"role": "user", "content": "long"}])
    assert template.render(HELLO) == "fine"


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such signals")
def test_a_process_that_is_ended_is_started_again() -> None:
    template = ChatTemplate("{{ messages[0].content }}", "", "")
    assert template._child is not None
    os.kill(template._child._process.pid, signal.SIGKILL)
    with pytest.raises(TemplateRefusal):
        template.render(HELLO)
    assert template.render(HELLO) == "Hello"
    template.close()
    assert template.render(HELLO) == "Hello"


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no alarm to interrupt with")
@pytest.mark.parametrize("started", [True, False])
def test_after_an_interrupt_no_prompt_is_the_one_before(started: bool) -> None:
    """It came while the answer of the process was awaited: that answer belongs to nobody."""
    loops = "{% for i in range(50) %}{% for j in range(40000) %}{% endfor %}{% endfor %}"
    slow = f"{{% if messages[0].content == 'slow' %}}{loops}{{% endif %}}"
    template = ChatTemplate(slow + "{{ messages[0].content }}", "", "")
    if not started:
        template.close()
    with interrupted_soon(), pytest.raises(KeyboardInterrupt):
        template.render([{"role": "user", "content": "slow"}])
    for text in ("one", "two"):
        assert template.render([{"role": "user", "content": text}]) == text


@contextmanager
def interrupted_soon() -> Iterator[None]:
    """Ctrl-C, a moment from now."""
    kept = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, kept)


def test_any_text_comes_through_whole() -> None:
    texts = ["", "é中🎉", "\ud800", "a\nb\r\n\0\x1b[2J", "{{ 1 }}", "x" * 300_000]
    template = ChatTemplate("{% for m in messages %}{{ m.content }}|{% endfor %}", "", "")
    given = [{"role": "user", "content": text} for text in texts]
    assert template.render(given) == "".join(f"{text}|" for text in texts)


def test_the_environment_is_that_of_other_programs() -> None:
    """Tokens, the prompt for an answer, break and continue, the tag for training, JSON as it is, and the
    template's own refusal."""
    source = (
        "{{ bos_token }}{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}\n"
        "{% generation %}{{ m | tojson }}{% endgeneration %}\n{% endfor %}"
        "{% if add_generation_prompt %}go{% endif %}{{ eos_token }}{{ tools }}"
    )
    messages = [{"role": "user", "content": "<é>"}, {"role": "user", "content": "x"}]
    template = ChatTemplate(source, "<s>", "</s>")
    assert template.render(messages) == '<s>{"role": "user", "content": "<é>"}go</s>None'
    assert (
        template.render(messages, generation_prompt=False) == '<s>{"role": "user", "content": "<é>"}</s>None'
    )
    with pytest.raises(TemplateRefusal, match="chat template: no system here"):
        ChatTemplate("{{ raise_exception('no system\\nhere') }}", "", "").render(HELLO)


def test_the_same_as_the_librarys_own_formatter(smol: Path) -> None:
    from llama_cpp.llama_chat_format import Jinja2ChatFormatter

    from specli.engine.gguf import read_header

    source = read_header(smol).text("tokenizer.chat_template")
    assert source is not None
    turns = [
        {"role": "system", "content": "Be brief."},
        *HELLO,
        {"role": "assistant", "content": "Hi"},
        *HELLO,
    ]
    theirs = Jinja2ChatFormatter(source, eos_token="<e>", bos_token="<b>")(messages=turns).prompt
    assert ChatTemplate(source, "<b>", "<e>").render(turns) == theirs


def test_how_the_child_answers() -> None:
    lines = [
        b'{"source": "{{ messages }}{{ bos_token }}", "bos": "b", "eos": ""}',
        b'{"messages": 1, "generation_prompt": true, "given": {}, "most": 9}',
    ]
    assert list(answers(iter(lines))) == [{"text": "", "asks_for": ["bos_token", "messages"]}, {"text": "1b"}]
    with pytest.raises(ValueError, match="more than 9 characters"):
        Renderer("{{ 'x' * 10 }}", "", "").render([], True, {}, 9)
