"""What goes wrong in a chat leaves the conversation, its files and the loaded model as they were."""

from __future__ import annotations

import gc
import json
import os
import re
import shutil
import weakref
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from talking import QUESTIONS, Talk, load, talk_over

from specli.chat.attached import Attached
from specli.chat.sessions import Shelf
from specli.cli import loaded
from specli.cli.loaded import Loaded
from specli.engine.model import Model, ModelParams
from specli.errors import EngineError, SpecliError
from specli.interrupts import Interrupts
from specli.ui.figures import final_figures, line

FILE = Attached("a.txt", "alpha beta")
TOO_LONG = "word " * 3000


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shelf:
    monkeypatch.setenv("SPECLI_CACHE_DIR", str(tmp_path / "cache"))
    return Shelf(tmp_path / "sessions")


@pytest.fixture
def model(tiny_target: Path, shelf: Shelf) -> Iterator[Loaded]:
    with closing(load(tiny_target, max_tokens=6, ctx_size=512, types=("draft-self",))) as model:
        yield model


def said(talk: Talk) -> str:
    text: str = talk.screen.err.getvalue()  # type: ignore[attr-defined]
    return text


def kept(talk: Talk) -> list[str]:
    """What stands on the disk."""
    return [message.text for message in talk.keeper.shelf.read(talk.keeper.name or "").messages]


class Stopped(Interrupts):
    """As if Ctrl-C had come already."""

    def stop(self) -> bool:
        return True


# -- questions that come to nothing -------------------------------------------------------------


def test_a_question_that_is_refused_leaves_its_files_waiting(model: Loaded, shelf: Shelf) -> None:
    talk = talk_over(model, shelf)
    talk.run(QUESTIONS[:1])
    before = kept(talk)
    talk.dialogue.files.append(FILE)
    with pytest.raises(SpecliError, match="shorten it"):
        talk.ask(TOO_LONG)
    assert talk.dialogue.files == [FILE] and kept(talk) == before
    talk.ask("short")
    assert talk.dialogue.messages[-2].files == (FILE,) and not talk.dialogue.files


def test_an_edited_question_that_is_refused_leaves_the_old_one(model: Loaded, shelf: Shelf) -> None:
    talk = talk_over(model, shelf)
    talk.dialogue.files.append(FILE)
    talk.run(QUESTIONS[:2])
    before, messages = kept(talk), list(talk.dialogue.messages)
    with pytest.raises(SpecliError, match="shorten it"):
        talk.ask_instead(TOO_LONG)
    assert talk.dialogue.messages == messages and kept(talk) == before and not talk.dialogue.files
    talk.ask_instead("another")
    assert [m.text for m in talk.dialogue.messages][:3] == [*before[:2], "another"] and len(before) == 4


def test_until_there_is_another_answer_the_old_one_stays_saved(model: Loaded, shelf: Shelf) -> None:
    talk = talk_over(model, shelf)
    talk.run(QUESTIONS[:1])
    before, seen = kept(talk), []
    real = talk.model.ask

    def looking(*args: object) -> object:
        seen.append(kept(talk))
        return real(*args)  # type: ignore[arg-type]

    object.__setattr__(talk.model, "ask", looking)
    talk.answer_again()
    talk.ask_instead("another")
    assert seen == [before, before] and kept(talk)[0] == "another"


def test_a_stopped_answer_that_had_not_begun_is_as_if_never_asked(model: Loaded, shelf: Shelf) -> None:
    talk = talk_over(model, shelf)
    talk.run(QUESTIONS[:1])
    messages, answers, last = list(talk.dialogue.messages), talk.dialogue.answers, talk.last
    talk.dialogue.files.append(FILE)
    talk._interrupts = Stopped()
    talk.ask("never answered")
    assert talk.dialogue.messages == messages and talk.dialogue.answers == answers
    assert talk.dialogue.files == [FILE] and talk.last is last and talk.totals.answers == 1


def test_a_conversation_of_no_turns_is_not_kept(model: Loaded, shelf: Shelf) -> None:
    talk = talk_over(model, shelf)
    talk.run([QUESTIONS[0], "/undo", "/save nothing"])
    assert shelf.names() == [] and talk.keeper.name is None and "nothing to save" in said(talk)
    talk.run([QUESTIONS[1], "/save mine", "/undo"])
    assert shelf.names() == ["mine"] and shelf.newest() is None  # a chosen name stays


def test_what_no_longer_fitted_comes_back_with_undo(model: Loaded, shelf: Shelf) -> None:
    talk = talk_over(model, shelf)
    talk.run([f"question number {i} about alpha, beta and gamma " * 4 for i in range(9)])
    assert talk.dialogue.first > 0
    for _ in range(7):
        assert talk.undo() is not None
    talk.ask("short")
    assert talk.dialogue.first == 0


# -- files --------------------------------------------------------------------------------------


def test_files_that_wait(model: Loaded, shelf: Shelf, tmp_path: Path) -> None:
    for name, data in (
        ("a.txt", b"alpha"),
        ("none.txt", b" \n"),
        ("b.bin", b"a\0b"),
        ("big.txt", b"word " * 900),
    ):
        (tmp_path / name).write_bytes(data)
    talk = talk_over(model, shelf)
    talk.run([f"/read {tmp_path}/{name}" for name in ("a.txt", "none.txt", "b.bin", "a.txt", "big.txt")])
    assert [Path(file.name).name for file in talk.dialogue.files] == ["a.txt", "big.txt"]
    for words in ("none.txt is empty", "b.bin is no text", "a.txt (", ", as it is now", "has room for"):
        assert words in said(talk)
    talk.run(["/read -", "/read -"])
    assert not talk.dialogue.files and "no longer with the next question" in said(talk)
    assert "no file waits" in said(talk)


# -- models -------------------------------------------------------------------------------------


def test_the_trace_of_a_model_that_is_gone(model: Loaded, shelf: Shelf, tiny_draft: Path) -> None:
    talk = talk_over(model, shelf)
    talk.run(["def one():", "/trace", "/spec draft-mtp", "/trace", "/stats", "/think"])
    assert said(talk).count("no answer to look at yet") == 1 and "taken back, or another model's" in said(
        talk
    )
    talk.run(["/spec default", "def two():", f"/model {tiny_draft}", "/trace"])
    assert said(talk).count("no answer to look at yet") == 2


def test_a_vocabulary_does_not_outlive_its_model(tiny_draft: Path) -> None:
    with Model(tiny_draft, ModelParams(0, use_extra_bufts=False)) as model:
        vocab = model.vocab
        piece = vocab.piece(300)
    assert vocab.piece(300) == piece
    for use in (
        lambda: vocab.piece(301),
        lambda: vocab.tokenize("a"),
        lambda: vocab.is_end(1),
        lambda: vocab.raw(1),
    ):
        with pytest.raises(EngineError, match="has been closed"):
            use()


def test_a_model_that_is_not_there_unloads_nothing(model: Loaded, shelf: Shelf, tmp_path: Path) -> None:
    before = model.generator
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(Path(model.reference).read_bytes()[:5000])
    for reference in ("/nowhere/m.gguf", str(broken)):
        with pytest.raises(SpecliError):
            model.use_model(reference)
        assert model.generator is before
    with pytest.raises(SpecliError, match="smaller model"):
        model.draft_with("draft-model")
    assert model.generator is before and talk_over(model, shelf).run(["hi"]) == 0


def test_neither_the_new_model_nor_the_old_can_be_loaded(
    tiny_draft: Path, tiny_target: Path, shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = shutil.copy(tiny_draft, tmp_path / "gone.gguf")
    with closing(load(Path(gone), max_tokens=4, types=("none",))) as model:
        talk = talk_over(model, shelf)
        talk.run(["hi"])
        os.unlink(gone)

        def fails(*_: object) -> None:
            raise EngineError("the library has had enough")

        monkeypatch.setattr(loaded, "load", fails)
        with pytest.raises(EngineError, match="had enough"):
            model.use_model(str(tiny_target))
        monkeypatch.undo()
        with pytest.raises(EngineError, match="has been closed"):
            talk.ask("still there?")
        assert [m.role for m in talk.dialogue.messages] == ["user", "assistant"]
        monkeypatch.setenv("SPECLI_CACHE_DIR", str(tmp_path / "cache"))
        model.use_model(str(tiny_target))
        talk.ask("and now?")
        assert talk.dialogue.turns == 2


def test_only_the_last_answer_is_held(model: Loaded, shelf: Shelf) -> None:
    talk = talk_over(model, shelf)
    talk.run(QUESTIONS[:1])
    first = weakref.ref(talk.all.pop())
    talk.run(QUESTIONS[1:2])
    gc.collect()
    assert first() is None and talk.totals.answers == 2 and talk.totals.tokens == 12


def test_an_answer_of_one_cycle_says_how_long_it_took(model: Loaded, shelf: Shelf) -> None:
    talk = talk_over(model, shelf)
    talk.run(["/set max-tokens 4", "/set fixed on", "/set logit-bias 300+100", "a", "a"])
    talk.run([f"/set {name} default" for name in ("max-tokens", "fixed", "logit-bias")])
    assert talk.all[1].stats.cycles == 1 and talk.all[1].stats.generated == 4
    shown = line(final_figures(talk.all[1], model.methods), 100, final=True)
    assert re.fullmatch(r"4 tokens · in \d\.\d\d s · 100% accepted · 4\.00/cycle · draft-self.*", shown)
    assert " tok/s " in line(final_figures(talk.all[0], model.methods), 100, final=True)


# -- exact mode ---------------------------------------------------------------------------------


@pytest.mark.parametrize("stop", ["e", "re", "\n"])
def test_a_stop_string_leaves_the_same_cache_whoever_drafts(
    stop: str, tiny_target: Path, shelf: Shelf
) -> None:
    held = []
    for types in (("none",), ("draft-self",), ("draft-mtp",)):
        given = {"exact": True, "fixed": True, "max_tokens": 40, "stop": (stop,), "types": types}
        with closing(load(tiny_target, **given)) as model:
            talk = talk_over(model, shelf)
            cached = []
            for question in (*QUESTIONS, *QUESTIONS):
                talk.ask(question)
                cached.append(list(model.generator.target.tokens))
            assert (
                any(answer.finish == "stop" and answer.stats.accepted for answer in talk.all)
                or not model.methods
            )
            assert all(len(answer.tokens) == answer.stats.generated for answer in talk.all)
            held.append(cached)
    assert held[0] == held[1] == held[2]


def test_a_cache_that_ends_early_is_said_in_exact_mode(tiny_draft: Path, shelf: Shelf) -> None:
    given = {"exact": True, "max_tokens": 12, "types": ("draft-self",)}
    with closing(load(tiny_draft, **given)) as model:
        talk = talk_over(model, shelf)
        talk.run(QUESTIONS[:2])  # its cache is kept
        talk.ask(QUESTIONS[2])  # and this is as if the program had been killed
        name = talk.keeper.name or ""
        talk.keeper.leave()
    with closing(load(tiny_draft, **given)) as model:
        late = talk_over(model, shelf)
        late.resume(name)
        assert "ends before the last answer" in said(late) and model.cached() > 0
        late.keeper.leave()
        shelf.write(name, replace(shelf.read(name), messages=shelf.read(name).messages[:4], answers=2))
    with closing(load(tiny_draft, **given)) as model:
        whole = talk_over(model, shelf)
        whole.resume(name)
        assert "ends before" not in said(whole)


def test_sessions_on_the_disk_stay_whole_json(model: Loaded, shelf: Shelf) -> None:
    talk = talk_over(model, shelf)
    talk.run([QUESTIONS[0], "/undo", QUESTIONS[1], "/regen", "/undo", QUESTIONS[2]])
    (path,) = shelf.folder.glob("*.json")
    assert len(json.loads(path.read_text("utf-8"))["messages"]) == 2
